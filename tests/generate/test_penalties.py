"""Penalties and biases against a loop over tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.params import SamplingParams
from fdjax.generate.penalties import (
    add_bias,
    count_tokens,
    init_bias,
    init_counts,
    init_penalties,
    penalise,
)
from tests.support.numerics import assert_close

VOCAB = 23
PARAMS = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.7, presence_penalty=0.4),
    SamplingParams(presence_penalty=-1.5, frequency_penalty=0.3),
    SamplingParams(repetition_penalty=2, presence_penalty=1, frequency_penalty=-0.6),
    SamplingParams(),
]
PROMPTS = [[1, 2, 2, 5], [], [7, 8], [0, 22], [3]]
OUTPUTS = [[5, 6, 6], [9, 9, 9, 10], [7, 11, 11], [], [3, 4]]


def looped(row: np.ndarray, index: int) -> np.ndarray:
    params, prompt, output = PARAMS[index], PROMPTS[index], OUTPUTS[index]
    row = row.copy()
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in output:
        row[token] -= params.frequency_penalty
    for token in set(output):
        row[token] -= params.presence_penalty
    return row


def test_penalise_agrees_with_a_loop():
    logits = np.random.default_rng(0).normal(size=(len(PARAMS), VOCAB)) * 4
    penalties = init_penalties(PARAMS, PROMPTS, vocab_size=VOCAB)
    counts = init_counts(OUTPUTS, vocab_size=VOCAB)
    actual = jax.jit(penalise)(jnp.asarray(logits, jnp.float32), penalties, counts)
    assert_close(
        actual, np.stack([looped(r, i) for i, r in enumerate(logits)]), reduction=1
    )


def test_impossible_tokens_stay_impossible():
    logits = jnp.full((len(PARAMS), VOCAB), -jnp.inf)
    penalties = init_penalties(PARAMS, PROMPTS, vocab_size=VOCAB)
    counts = init_counts(OUTPUTS, vocab_size=VOCAB)
    assert np.all(np.asarray(penalise(logits, penalties, counts)) == -np.inf)


def test_count_tokens_counts_running_rows_only():
    counts = init_counts([[1, 1], [2], []], vocab_size=4)
    tokens, emitted = jnp.array([1, 2, 3]), jnp.array([True, False, True])
    counted = count_tokens(counts, tokens, emitted)
    assert counted.tolist() == [[0, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_bias_is_added_where_named():
    params = [
        SamplingParams(logit_bias={0: 2.5, 3: -100}),
        SamplingParams(),
        SamplingParams(logit_bias={4: 1}),
    ]
    bias = init_bias(params, num_biased=16, vocab_size=5)
    biased = jax.jit(add_bias)(jnp.ones((3, 5)), bias)
    expected = [[3.5, 1, 1, -99, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 2]]
    assert biased.tolist() == expected
