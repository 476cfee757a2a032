"""The tables at both ends of a decoder, against NumPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import Embedding, Learned
from fdjax.kernels.weight import Dense
from fdjax.layers import Embedder, Head, PositionTable
from tests.support.numerics import assert_close

VOCABULARY, HIDDEN = 11, 24


def drawn(*shape: int, seed: int, dtype: Any = jnp.float32) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def head_of(spec: Embedding, *, dtype: Any = jnp.float32) -> Head:
    head = Head(spec, HIDDEN, dtype=dtype)
    if head.weight is not None:
        head.weight.set_value(Dense(drawn(VOCABULARY, HIDDEN, seed=1, dtype=dtype)))
    if head.bias is not None:
        head.bias.set_value(drawn(VOCABULARY, seed=2, dtype=dtype))
    return head


def test_positions_begin_at_the_offset():
    table = PositionTable(Learned(size=6, offset=2), HIDDEN, dtype=jnp.float32)
    table.weight.set_value(drawn(8, HIDDEN, seed=0))
    embedder = Embedder(Embedding(VOCABULARY, tied=True), HIDDEN, dtype=jnp.float32)
    words = drawn(VOCABULARY, HIDDEN, seed=1)
    embedder.weight.set_value(Dense(words))
    tokens, places = np.array([3, 10, 0], np.int32), np.array([0, 5, 1], np.int32)
    found = embedder(jnp.asarray(tokens), *table(jnp.asarray(places)))
    words, vectors = np.asarray(words), np.asarray(table.weight[...])
    np.testing.assert_array_equal(found, words[tokens] + vectors[places + 2])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_the_head_is_a_linear_map(tied: bool, bias: bool, cap: float | None):
    spec = Embedding(VOCABULARY, tied=tied, head_bias=bias, soft_cap=cap)
    head = head_of(spec)
    x, table = drawn(5, HIDDEN, seed=3), Dense(drawn(VOCABULARY, HIDDEN, seed=4))
    weight = (table if head.weight is None else head.weight.get_value()).values
    logits = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    if head.bias is not None:
        logits = logits + np.asarray(head.bias[...], np.float64)
    if cap is not None:
        logits = cap * np.tanh(logits / cap)
    assert (head.weight is None, head.bias is None) == (tied, not bias)
    assert_close(head(x, table), logits, reduction=HIDDEN)


def test_logits_are_not_rounded_to_the_weights_type():
    head = head_of(Embedding(VOCABULARY, tied=True), dtype=jnp.bfloat16)
    x, table = (
        drawn(*shape, seed=seed, dtype=jnp.bfloat16)
        for seed, shape in enumerate([(5, HIDDEN), (VOCABULARY, HIDDEN)])
    )
    logits = head(x, Dense(table))
    exact = np.asarray(x, np.float64) @ np.asarray(table, np.float64).T
    assert logits.dtype == jnp.float32
    assert_close(logits, exact, reduction=HIDDEN)
