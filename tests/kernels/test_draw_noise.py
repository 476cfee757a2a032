"""Noise: Gumbel distributed, fine enough, and a function of key and step alone."""

import jax.numpy as jnp
import numpy as np
from jax import random

from fdjax.kernels.draw.noise import gumbel, gumbel_of_bits
from tests.support.numerics import assert_close


def key_data(*seeds: int) -> jnp.ndarray:
    return jnp.stack([random.key_data(random.key(seed)) for seed in seeds])


def noise(seed: int, *, size: int, step: int = 0) -> np.ndarray:
    return np.asarray(gumbel(key_data(seed), jnp.array([step]), vocab_size=size)[0])


def test_is_gumbel_distributed():
    sample = np.sort(noise(0, size=1 << 18).astype(np.float64))
    expected = np.exp(-np.exp(-sample))
    observed = (np.arange(len(sample)) + 0.5) / len(sample)
    # Dvoretzky-Kiefer-Wolfowitz: exceeded with a chance of 2 exp(-2 n d^2) = 1e-6.
    limit = np.sqrt(np.log(2e6) / (2 * len(sample)))
    assert np.max(np.abs(expected - observed)) < limit


def test_is_fine_where_winners_are():
    # Of 2**20 draws with 23 random bits the largest 200 would fall on about 1,600
    # values, 12 pairs of them on the same; with 32 bits they tie once in 40 runs.
    winners = np.sort(noise(1, size=1 << 20))[-200:]
    assert len(np.unique(winners)) == 200


def test_ends_of_the_range():
    bits = jnp.array([[0, 1, 2**20, 2**31, 2**32 - 1]], jnp.uint32)
    noise = gumbel_of_bits(bits)
    uniform = (np.asarray(bits, np.float64) + 0.5) / 2**32
    expected = -np.log(-np.log1p(-np.minimum(uniform, 1 - 2.0**-24)))
    assert_close(noise, expected, reduction=1)


def test_depends_on_seed_and_step_only():
    keys, steps = key_data(3, 4, 3, 3), jnp.array([0, 0, 1, 0])
    rows = np.asarray(gumbel(keys, steps, vocab_size=50))
    assert np.array_equal(rows[0], rows[3])
    assert np.array_equal(rows[0], noise(3, size=50))
    assert np.array_equal(rows[2], noise(3, size=50, step=1))
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert not np.any(rows[a] == rows[b])
