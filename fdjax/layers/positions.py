"""Constants of rotary and linear-bias positions, computed once in float32."""

import math

import numpy as np

from fdjax.config import LinearScaling, Llama3Scaling, Positions, Rope


def rope_frequencies(positions: Positions | None) -> np.ndarray:
    """Angle per position of each rotated pair, `[R / 2]`; empty without RoPE."""
    if not isinstance(positions, Rope):
        return np.zeros((0,), np.float32)
    exponent = np.arange(0, positions.rotary_dim, 2, dtype=np.float32)
    base = np.float32(positions.theta)
    frequencies = 1.0 / base ** (exponent / np.float32(positions.rotary_dim))
    match positions.scaling:
        case LinearScaling(factor=factor):
            frequencies = frequencies / np.float32(factor)
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
        case None:
            pass
    return frequencies.astype(np.float32)


def _llama3(frequencies: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Stretches wavelengths past the original context, blending in between."""
    wavelength = 2 * math.pi / frequencies
    turns = scaling.original_max_position / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def alibi_slopes(num_heads: int) -> np.ndarray:
    """The slope of each head, `[Hq]`, as BLOOM defines them.

    Powers of one base for the largest power of two of heads; heads beyond it take
    the odd powers of the base's root.
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(whole) - 3)))
    slopes = [base**power for power in range(1, whole + 1)]
    root = 2.0 ** (-(2.0 ** -(math.log2(2 * whole) - 3)))
    slopes += [root**power for power in range(1, 2 * (num_heads - whole), 2)]
    return np.asarray(slopes, np.float32)
