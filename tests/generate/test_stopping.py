"""Rows finish when, and only when, their rules say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import (
    FinishReason,
    forbid_early_stops,
    init_stop_rules,
    update_finished,
)

VOCAB = 10
EOS = (8, 9)
RUNNING, STOP, LENGTH, NON_FINITE, *_ = FinishReason
FINITE = jnp.array([True])


@pytest.mark.parametrize(
    ("params", "token", "generated", "reason"),
    [
        (SamplingParams(), 3, 1, RUNNING),
        (SamplingParams(), 8, 1, STOP),
        (SamplingParams(), 9, 1, STOP),
        (SamplingParams(ignore_eos=True), 9, 1, RUNNING),
        (SamplingParams(ignore_eos=True, stop_token_ids=[9]), 9, 1, STOP),
        (SamplingParams(stop_token_ids=[3]), 3, 1, STOP),
        (SamplingParams(stop_token_ids=[3]), 4, 1, RUNNING),
        (SamplingParams(max_tokens=2), 3, 1, RUNNING),
        (SamplingParams(max_tokens=2), 3, 2, LENGTH),
        (SamplingParams(max_tokens=2), 9, 2, STOP),
        (SamplingParams(max_tokens=None), 3, 10**6, RUNNING),
    ],
)
def test_reason(params: SamplingParams, token: int, generated: int, reason: int):
    rules = init_stop_rules(
        [params], num_stop_ids=4, vocab_size=VOCAB, eos_token_ids=EOS
    )
    update = jax.jit(update_finished)
    for before in FinishReason:
        after = update(
            jnp.array([before]),
            jnp.array([generated]),
            jnp.array([token]),
            FINITE,
            rules,
        )
        assert after.dtype == jnp.int32
        assert after.tolist() == [reason if before == RUNNING else before]


def test_without_any_stop_id():
    rules = init_stop_rules(
        [SamplingParams()], num_stop_ids=0, vocab_size=VOCAB, eos_token_ids=()
    )
    after = update_finished(
        jnp.array([0]), jnp.array([1]), jnp.array([3]), FINITE, rules
    )
    assert after.tolist() == [RUNNING]


def test_what_is_not_drawn_by_numbers_ends_first():
    rules = init_stop_rules(
        [SamplingParams(max_tokens=1)] * 3,
        num_stop_ids=0,
        vocab_size=VOCAB,
        eos_token_ids=EOS,
    )
    after = update_finished(
        jnp.array([RUNNING, RUNNING, LENGTH]),
        jnp.array([1, 1, 1]),
        jnp.array([8, 3, 3]),
        jnp.zeros(3, bool),
        rules,
    )
    assert after.tolist() == [NON_FINITE, NON_FINITE, LENGTH]


def test_early_stops_are_impossible():
    params = [
        SamplingParams(min_tokens=2, stop_token_ids=[0]),
        SamplingParams(min_tokens=2, ignore_eos=True),
        SamplingParams(),
    ]
    rules = init_stop_rules(params, num_stop_ids=4, vocab_size=VOCAB, eos_token_ids=EOS)
    for generated, forbidden in [(1, [[0, 8, 9], [], []]), (2, [[], [], []])]:
        logits = forbid_early_stops(
            jnp.zeros((3, VOCAB)), rules, jnp.full(3, generated)
        )
        found = [np.flatnonzero(row < -1e27).tolist() for row in np.asarray(logits)]
        assert found == forbidden
        num_forbidden = sum(len(row) for row in forbidden)
        assert np.sum(np.asarray(logits) == 0) == 3 * VOCAB - num_forbidden
        assert np.isfinite(logits).all(), "one is chosen where nothing else may be"


def test_what_a_mask_forbids_stays_forbidden():
    rules = init_stop_rules(
        [SamplingParams(min_tokens=2)], num_stop_ids=0, vocab_size=2, eos_token_ids=[1]
    )
    logits = forbid_early_stops(jnp.array([[0, -jnp.inf]]), rules, jnp.array([1]))
    assert logits.tolist() == [[0, -np.inf]]


def test_text():
    assert [reason.text for reason in FinishReason] == [
        None,
        "stop",
        "length",
        "error",
        "error",
        "error",
        "abort",
        "error",
    ]
