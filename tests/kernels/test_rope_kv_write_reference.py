"""The definition of RoPE and of the write, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import KVCache
from fdjax.kernels.rope_kv_write import RopeKVWrite, reference
from tests.support.numerics import assert_close


def _rotate_half(x: np.ndarray) -> np.ndarray:
    """transformers' `rotate_half` of Llama: pairs (i, i + R / 2)."""
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _rotate_every_two(x: np.ndarray) -> np.ndarray:
    """transformers' `rotate_every_two` of GPT-J: pairs (2 i, 2 i + 1)."""
    return np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)


def _transformers_rope(
    x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, *, interleaved: bool
) -> np.ndarray:
    angles = positions[:, None] * frequencies
    if interleaved:
        angles, turn = np.repeat(angles, 2, axis=-1), _rotate_every_two
    else:
        angles, turn = np.concatenate([angles, angles], axis=-1), _rotate_half
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    rotary = angles.shape[-1]
    rotated, rest = x[..., :rotary], x[..., rotary:]
    return np.concatenate([rotated * cos + turn(rotated) * sin, rest], axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [0, 5, 8])
def test_rope_is_that_of_transformers(half: int, interleaved: bool):
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 3, 16)).astype(np.float32)
    positions = np.array([0, 1, 7, 500], np.int32)
    frequencies = (10_000.0 ** -np.linspace(0, 1, half)).astype(np.float32)
    actual = reference.rope(
        *map(jnp.asarray, (x, positions, frequencies)), interleaved=interleaved
    )
    # Angles in float32, as the definition has them: at 500 their rounding shows.
    angles = positions.astype(np.float32)
    expected = _transformers_rope(x, angles, frequencies, interleaved=interleaved)
    assert_close(actual, expected, reduction=2)


def test_definition_against_a_loop_in_numpy():
    random = np.random.default_rng(1)
    qkv = random.normal(size=(3, 8, 4)).astype(np.float32)  # Hq = 4, Hkv = 2
    kv = random.normal(size=(2, 3, 2, 4, 2, 4)).astype(np.float32)
    positions, slots = np.array([3, 0, 9], np.int32), np.array([5, -1, 2], np.int32)
    frequencies = np.array([1.0, 0.1], np.float32)
    rest = map(jnp.asarray, (positions, slots, frequencies))
    layer = KVCache.page_major(jnp.asarray(kv)).layer(1)
    query, written = reference.rope_kv_write(
        RopeKVWrite(jnp.asarray(qkv), layer, *rest, interleaved=False)
    )
    turned = _transformers_rope(qkv, positions, frequencies, interleaved=False)
    expected = kv.copy()
    for token, (page, slot) in {0: (1, 1), 2: (0, 2)}.items():
        expected[page, 1, 0, slot] = turned[token, 4:6]
        expected[page, 1, 1, slot] = qkv[token, 6:8]
    assert_close(query, turned[:, :4], reduction=2)
    assert_close(written.array, expected, reduction=2)
