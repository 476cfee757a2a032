"""Counts of recomputed query heads: 64 bits wide, and of running rows only."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from fdjax import UnifiedMax
from fdjax.generate.softmax_counts import SoftmaxCounts, SoftmaxStatistics
from tests.support.engines import tiny_model

CONFIG = dataclasses.replace(tiny_model().config, unified=UnifiedMax(0.0, -1.0, 1.0))
RECOMPUTED = jnp.array([[1, 5, 2], [0, 7, 0], [4, 3, 4]])
TOKENS = jnp.array([1, 0, 3])


def zeros() -> SoftmaxCounts:
    counts = SoftmaxCounts.of(CONFIG)
    assert counts is not None
    return counts


def test_the_synchronised_softmax_counts_nothing():
    assert SoftmaxCounts.of(tiny_model().config) is None


def test_only_rows_with_tokens_count():
    counts = zeros().add(RECOMPUTED, TOKENS).add(RECOMPUTED, TOKENS)
    assert counts.read(num_heads=4) == SoftmaxStatistics(32, (6, 0, 16))


@pytest.mark.parametrize("before", [2**31 - 1, 2**32 - 1, 2**40 - 1])
def test_counts_go_on_beyond_32_bits(before: int):
    halves = jnp.array([before % 2**32, before >> 32], jnp.uint32)
    counts = SoftmaxCounts(halves, jnp.broadcast_to(halves, (3, 2)))
    after = jax.jit(SoftmaxCounts.add)(counts, RECOMPUTED, TOKENS)
    read = after.read(num_heads=1)
    assert read.query_heads == before + 4
    assert read.recomputed == (before + 3, before, before + 8)


def test_the_rate_is_over_all_layers():
    assert SoftmaxStatistics(10, (1, 0, 5)).rate == pytest.approx(0.2)
    assert SoftmaxStatistics(0, (0, 0)).rate == 0.0
