"""Sampling, compiled for an H200: drawing is one kernel, however it is filtered."""

import functools

import jax
import jax.numpy as jnp
import pytest

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


def _program(params: SamplingParams) -> str:
    """What an engine runs for such requests, optimized."""
    plan = serving_plan([params])
    state = jax.eval_shape(functools.partial(_state, plan))
    logits = jax.ShapeDtypeStruct((BATCH, VOCAB_SIZE), jnp.float32)
    compiled = compile_for_h200(functools.partial(sample, plan=plan), logits, state)
    return compiled.as_text() or ""


def _state(plan: SamplingPlan) -> SamplingState:
    return init_state(
        [SamplingParams()] * BATCH,
        [()] * BATCH,
        plan=plan,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(1,),
        default_seeds=range(BATCH),
        num_rows=BATCH,
    )


@pytest.mark.parametrize(
    ("params", "draws"),
    [
        (SamplingParams(temperature=0.0), 0),
        (SamplingParams(top_k=50, top_p=0.9), 1),
    ],
    ids=["greedy", "drawing"],
)
def test_tokens_are_chosen_without_loops_and_sorts(params: SamplingParams, draws: int):
    program = _program(params)
    assert program.count('custom_call_target="fdjax.draw.') == draws
    assert " while(" not in program
    assert " sort(" not in program
