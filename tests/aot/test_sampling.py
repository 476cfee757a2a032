"""Sampling, compiled for an H200: drawing is one kernel, however it is filtered."""

import functools
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import device
from fdjax.engine.workspace import sampling_bytes
from fdjax.generate.most_likely import CHUNK
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SERVING_PLANS, SamplingPlan, serving_plan
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.rows import Arrivals, sample_rows
from fdjax.generate.sampling import sample
from fdjax.generate.sampling_state import SamplingState, init_state
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

BATCH, VOCAB_SIZE = 8, 128_256
MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"


def _program(params: SamplingParams, rows: int = BATCH) -> jax.stages.Compiled:
    """What an engine runs for such requests, optimized."""
    plan = serving_plan([params])
    state = jax.eval_shape(functools.partial(_state, plan, rows))
    logits = jax.ShapeDtypeStruct((rows, VOCAB_SIZE), jnp.float32)
    choose = functools.partial(sample, plan=plan)
    return compile_for_h200(choose, logits, state, donate_argnums=(1,))


def _state(plan: SamplingPlan, rows: int) -> SamplingState:
    return init_state(
        [SamplingParams()] * rows,
        [()] * rows,
        plan=plan,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(1,),
        default_seeds=range(rows),
        num_rows=rows,
    )


def _of_rows(
    plan: SamplingPlan, config: ModelConfig, *, rows: int, num_arrivals: int
) -> tuple[Any, ...]:
    """Shapes of what `sample_rows` takes behind the model."""

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    state = jax.eval_shape(functools.partial(_state, plan, rows))
    coming = jax.eval_shape(functools.partial(_state, plan, num_arrivals))
    layout = config.kv_layout(num_pages=8, page_size=16, dtype=jnp.bfloat16)
    kv = jax.eval_shape(layout.allocate)
    progress = jax.eval_shape(
        GenerationProgress, kv, ints(rows), ints(rows), state.progress
    )
    return (
        jax.ShapeDtypeStruct((rows, config.hidden_size), jnp.bfloat16),
        jax.ShapeDtypeStruct((rows,), jnp.bool_),
        jax.eval_shape(Arrivals, coming, ints(num_arrivals), ints(num_arrivals)),
        state.rules,
        progress,
    )


@pytest.mark.parametrize(
    ("params", "draws"),
    [
        (SamplingParams(temperature=0.0), 0),
        (SamplingParams(top_k=50, top_p=0.9), 1),
        (SamplingParams(top_k=50, frequency_penalty=0.1, logprobs=20), 1),
    ],
    ids=["greedy", "drawing", "everything"],
)
def test_tokens_are_chosen_without_loops_and_long_sorts(
    params: SamplingParams, draws: int
):
    program = _program(params).as_text() or ""
    assert program.count('custom_call_target="fdjax.draw.') == draws
    assert " while(" not in program
    # The most likely tokens are found among those of a few chunks.
    sorts = [line for line in program.splitlines() if " sort(" in line]
    sizes = [int(size) for line in sorts for size in re.findall(r"\[\d+,(\d+)\]", line)]
    assert bool(sorts) == (params.logprobs is not None)
    assert max(sizes, default=0) <= VOCAB_SIZE // CHUNK


@pytest.mark.parametrize("plan", SERVING_PLANS, ids=["greedy", "drawing", "everything"])
def test_sampling_takes_what_the_workspace_counts(
    plan: SamplingPlan, monkeypatch: pytest.MonkeyPatch
):
    """In an engine's program, in which prompts come to their rows, too."""
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    config = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    model = Decoder(config, jnp.bfloat16)
    run = functools.partial(sample_rows, plan=plan)
    operands = _of_rows(plan, config, rows=64, num_arrivals=16)
    program = compile_for_h200(run, model, *operands, donate_argnums=(4, 5))
    analysis = program.memory_analysis()
    assert analysis is not None
    counted = sampling_bytes(config, num_rows=64)
    assert analysis.temp_size_in_bytes < counted + 2 * 2**20
