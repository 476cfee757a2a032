"""A bit for each token: what is not set cannot come, and nothing else changes."""

import dataclasses

import jax
import numpy as np
import pytest

from fdjax.generate.masks import init_masks, masked, num_words
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SERVING_PLANS, plan_of
from fdjax.generate.sampling import sample
from fdjax.generate.sampling_state import init_state
from fdjax.generate.stopping import FinishReason
from fdjax.generate.structured import StructuredOutputs
from tests.support.matchers import mask_of
from tests.support.sampling import jitted_sample, normal_logits, state_of

PARAMS = [
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(
        top_k=2, top_p=0.9, repetition_penalty=2, logit_bias={3: 100.0}, logprobs=3
    ),
]


@pytest.mark.parametrize("vocab_size", [5, 32, 33, 100])
def test_bits_are_tokens(vocab_size: int):
    allowed = {0, vocab_size // 2, vocab_size - 1}
    mask = mask_of(allowed, vocab_size=vocab_size)
    assert len(mask) == num_words(vocab_size)
    masks = init_masks([mask, None], num_rows=3, vocab_size=vocab_size)
    logits = normal_logits(3, vocab_size)
    out = np.asarray(jax.jit(masked)(logits, masks))
    assert set(np.flatnonzero(np.isfinite(out[0]))) == allowed
    np.testing.assert_array_equal(out[0, [*allowed]], logits[0, np.array([*allowed])])
    np.testing.assert_array_equal(out[1:], logits[1:])


@pytest.mark.parametrize("params", PARAMS, ids=lambda p: f"{p.temperature}-{p.top_k}")
@pytest.mark.parametrize("allowed", [[2], [0, 40], [1, 31, 32, 49]], ids=str)
def test_only_what_is_allowed_comes(params: SamplingParams, allowed: list[int]):
    """As if the model had no other tokens: those of the rest are at -inf."""
    plan = dataclasses.replace(plan_of([params]), masks=True)
    logits = normal_logits(1, 50)
    state = state_of([params], vocab_size=50, plan=plan)
    mask = mask_of(allowed, vocab_size=50)
    rules = dataclasses.replace(
        state.rules, allowed=init_masks([mask], num_rows=1, vocab_size=50)
    )
    state = dataclasses.replace(state, rules=rules)
    sampled, _ = jitted_sample(logits, state, plan=plan)
    others = [token for token in range(50) if token not in allowed]
    cut = logits.at[:, np.array(others)].set(-np.inf)
    without = dataclasses.replace(plan, masks=False)
    expected, _ = jitted_sample(
        cut, state_of([params], vocab_size=50, plan=without), plan=without
    )
    assert sampled.tokens.tolist() == expected.tokens.tolist()
    assert int(sampled.tokens[0]) in allowed
    np.testing.assert_array_equal(sampled.logprobs, expected.logprobs)
    np.testing.assert_array_equal(sampled.top_logprobs, expected.top_logprobs)


def test_min_tokens_gives_way_where_nothing_else_may_come():
    params = SamplingParams(temperature=0, min_tokens=5, stop_token_ids=[15])
    plan = dataclasses.replace(plan_of([params]), masks=True)
    masks = [mask_of(allowed, vocab_size=50) for allowed in ([15], [15, 40])]
    state = init_state(
        [params] * 2,
        [()] * 2,
        plan=plan,
        vocab_size=50,
        eos_token_ids=[1],
        default_seeds=[0, 0],
        num_rows=2,
        masks=masks,
    )
    sampled, _ = jitted_sample(normal_logits(2, 50), state, plan=plan)
    assert sampled.tokens.tolist() == [15, 40]
    assert sampled.finished.tolist() == [FinishReason.STOP, FinishReason.RUNNING]


def test_without_a_mask_a_plan_with_masks_changes_nothing():
    plan = plan_of(PARAMS)
    logits = normal_logits(len(PARAMS), 50)
    expected, _ = jitted_sample(logits, state_of(PARAMS, vocab_size=50), plan=plan)
    plan = dataclasses.replace(plan, masks=True)
    state = state_of(PARAMS, vocab_size=50, plan=plan)
    sampled, _ = jitted_sample(logits, state, plan=plan)
    assert sampled.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_array_equal(sampled.logprobs, expected.logprobs)


def test_plans_that_mask():
    form = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
    assert plan_of([SamplingParams(), form]).masks
    assert not plan_of([SamplingParams()]).masks
    assert all(plan.masks for plan in SERVING_PLANS)


def test_masks_are_there_where_the_plan_has_them():
    plan = plan_of([SamplingParams()])
    state = state_of([SamplingParams()], vocab_size=50, plan=plan)
    with pytest.raises(AssertionError):
        sample(normal_logits(1, 50), state, plan=dataclasses.replace(plan, masks=True))
