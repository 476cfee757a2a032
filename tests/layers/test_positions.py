"""Constants of positions against the formulas of those who published them."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import Alibi, LinearScaling, Llama3Scaling, Positions, Rope
from fdjax.layers.positions import alibi_slopes, rope_frequencies
from tests.support.numerics import assert_close

# Those of Llama 3.1.
LLAMA3 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)


def plain(theta: float, rotary_dim: int) -> np.ndarray:
    """Vaswani et al. and Su et al.: a geometric row, one for each pair."""
    return np.array([theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def llama3(frequency: float) -> float:
    """After Meta's `apply_scaling`, which has a branch for each of three cases."""
    wavelength = 2 * math.pi / frequency
    if wavelength < 8192 / 4.0:
        return frequency
    if wavelength > 8192 / 1.0:
        return frequency / 8.0
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * frequency / 8.0 + smooth * frequency


def assert_each_close(frequencies: np.ndarray, expected: np.ndarray) -> None:
    """Compares exponents, so that the smallest counts as much as the largest."""
    assert frequencies.dtype == np.float32
    assert_close(jnp.asarray(np.log(frequencies)), np.log(expected), reduction=1)


@pytest.mark.parametrize(("theta", "dim"), [(10_000.0, 64), (500_000.0, 128), (1e6, 2)])
def test_frequencies_fall_by_powers_of_theta(theta: float, dim: int):
    assert_each_close(rope_frequencies(Rope(theta, dim)), plain(theta, dim))


def test_linear_scaling_divides_positions():
    frequencies = rope_frequencies(Rope(10_000.0, 64, scaling=LinearScaling(4.0)))
    assert_each_close(frequencies, plain(10_000.0, 64) / 4.0)


def test_llama_3_1_stretches_what_turns_seldom():
    before = plain(500_000.0, 128)
    expected = np.array([llama3(frequency) for frequency in before])
    parts = expected / before
    assert (parts == 1).any() and (parts == 1 / 8).any()
    assert ((parts > 1 / 8) & (parts < 1)).any(), "all three cases must be there"
    frequencies = rope_frequencies(Rope(500_000.0, 128, scaling=LLAMA3))
    assert_each_close(frequencies, expected)


@pytest.mark.parametrize("positions", [Alibi(), None], ids=["alibi", "none"])
def test_positions_without_rotation_have_no_frequency(positions: Positions | None):
    assert rope_frequencies(positions).shape == (0,)


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [2**-8]),
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        # Beyond four heads, every second slope of eight.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (
            12,
            [
                *(2.0**-k for k in range(1, 9)),
                *(2.0 ** (0.5 - k) for k in (1, 2, 3, 4)),
            ],
        ),
    ],
)
def test_slopes_are_those_of_the_paper(num_heads: int, expected: list[float]):
    slopes = alibi_slopes(num_heads)
    assert slopes.dtype == np.float32
    np.testing.assert_array_equal(slopes, np.asarray(expected, np.float32))
