"""Tokens that rows may emit only, and sequences that they may not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import plan_of
from tests.support.numerics import assert_close
from tests.support.sampling import jitted_sample, normal_logits, state_of

VOCAB = 40
# Always the same order of preference: 0, 1, 2 and so on.
FALLING = -jnp.arange(VOCAB, dtype=jnp.float32)


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=None, **fields)


def emitted(
    params: list[SamplingParams],
    *,
    num_steps: int = 6,
    outputs: list[list[int]] | None = None,
    logits: jax.Array = FALLING,
) -> list[list[int]]:
    """What each row emits, its logits the same in every step."""
    plan = plan_of(params)
    state = state_of(params, vocab_size=VOCAB, plan=plan, outputs=outputs)
    tokens: list[np.ndarray] = []
    for _ in range(num_steps):
        many = jnp.tile(logits[None], (len(params), 1))
        sampled, state = jitted_sample(many, state, plan=plan)
        tokens.append(np.asarray(sampled.tokens))
    return np.stack(tokens).T.tolist()


def test_only_allowed_tokens_come():
    rows = emitted([greedy(allowed_token_ids=[33, 8, 39]), greedy()], num_steps=2)
    assert rows == [[8, 8], [0, 0]]


def test_draws_are_among_the_allowed():
    params = SamplingParams(allowed_token_ids=[3, 31, 32], seed=1, max_tokens=None)
    (row,) = emitted([params], num_steps=64, logits=jnp.zeros(VOCAB))
    assert set(row) == {3, 31, 32}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([[0]], [1, 1, 1, 1, 1, 1]),
        ([[0], [1]], [2, 2, 2, 2, 2, 2]),
        ([[0, 0]], [0, 1, 0, 1, 0, 1]),
        ([[0, 0, 0]], [0, 0, 1, 0, 0, 1]),
        ([[0, 0], [0, 1]], [0, 2, 0, 2, 0, 2]),
        ([[0, 0], [0, 1, 0]], [0, 1, 1, 0, 1, 1]),
        ([[5, 0]], [0, 0, 0, 0, 0, 0]),
        ([[0] * 8], [0, 0, 0, 0, 0, 0]),
    ],
)
def test_sequences_do_not_come(words: list[list[int]], wanted: list[int]):
    alone = emitted([greedy(bad_words=words)])
    assert alone == [wanted]
    assert emitted([greedy(), greedy(bad_words=words)]) == [[0] * 6, wanted]


def test_the_longest_sequence_does_not_come():
    (row,) = emitted([greedy(bad_words=[[0] * 8])], num_steps=10)
    assert row == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]


def test_rows_that_resume_know_what_they_have_emitted():
    params = greedy(bad_words=[[0, 0, 0], [0, 1]])
    (whole,) = emitted([params], num_steps=8)
    for split in range(8):
        (rest,) = emitted([params], num_steps=8 - split, outputs=[whole[:split]])
        assert whole[:split] + rest == whole


def test_a_list_of_what_may_come_wins_over_what_may_not():
    params = greedy(allowed_token_ids=[7, 9], bad_words=[[7], [9]])
    (row,) = emitted([params])
    assert set(row) <= {7, 9}
    hot = SamplingParams(
        temperature=100.0,
        repetition_penalty=100.0,
        seed=1,
        max_tokens=None,
        allowed_token_ids=[7, 9],
        bad_words=[[7], [9]],
    )
    assert set(emitted([hot])[0]) <= {7, 9}


def test_logprobs_are_of_all_tokens():
    params = [greedy(logprobs=2, allowed_token_ids=[9]), greedy(logprobs=2)]
    plan, logits = plan_of(params), normal_logits(VOCAB)
    state = state_of(params, vocab_size=VOCAB, plan=plan)
    sampled, _ = jitted_sample(jnp.tile(logits, (2, 1)), state, plan=plan)
    wanted = jax.nn.log_softmax(logits)
    assert sampled.logprobs is not None
    assert_close(sampled.logprobs[0], wanted[9], reduction=VOCAB)
    assert sampled.top_ids[0].tolist() == sampled.top_ids[1].tolist()
