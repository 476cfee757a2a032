"""Sampling, compiled for an H200: drawing is one kernel, however it is filtered."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate.most_likely import CHUNK
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan, serving_plan
from fdjax.generate.sampling import sample
from fdjax.generate.sampling_state import SamplingState, init_state
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

BATCH, VOCAB_SIZE = 8, 128_256


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


def test_sampling_takes_what_the_workspace_counts():
    """Of all stages together; an engine's program has one of them for its logits."""
    every = SamplingParams(top_k=50, frequency_penalty=0.1, min_tokens=3, logprobs=20)
    analysis = _program(every, rows=64).memory_analysis()
    assert analysis is not None
    logits = 64 * VOCAB_SIZE * 4
    assert analysis.temp_size_in_bytes < 3 * logits + 2**20
