"""`rms_norm` and `layer_norm` against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.layer_norm import layer_norm
from fdjax.kernels.rms_norm import rms_norm
from tests.support.numerics import assert_close

SHAPES = [(1, 8), (3, 80), (2, 5, 97), (4, 4096), (2, 12288)]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def _draw(shape: tuple[int, ...], dtype: jax.typing.DTypeLike, seed: int) -> jax.Array:
    normal = np.random.default_rng(seed).normal(0.5, 2.0, shape)
    return jnp.asarray(normal, dtype)


def _wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_is_its_formula(
    shape: tuple[int, ...], dtype: jax.typing.DTypeLike, offset: float
):
    x, scale = _draw(shape, dtype, 0), _draw(shape[-1:], dtype, 1)
    actual = jax.jit(lambda x, s: rms_norm(x, s, epsilon=1e-5, scale_offset=offset))(
        x, scale
    )
    mean_square = np.mean(_wide(x) ** 2, axis=-1, keepdims=True)
    expected = _wide(x) / np.sqrt(mean_square + 1e-5) * (_wide(scale) + offset)
    assert actual.dtype == dtype
    assert_close(actual, expected, reduction=shape[-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_is_its_formula(shape: tuple[int, ...], dtype: jax.typing.DTypeLike):
    x, scale, bias = (
        _draw(s, dtype, i) for i, s in enumerate([shape, *[shape[-1:]] * 2])
    )
    actual = jax.jit(lambda *operands: layer_norm(*operands, epsilon=1e-5))(
        x, scale, bias
    )
    wide = _wide(x)
    variance = np.var(wide, axis=-1, keepdims=True)
    centred = wide - np.mean(wide, axis=-1, keepdims=True)
    expected = centred / np.sqrt(variance + 1e-5) * _wide(scale) + _wide(bias)
    assert actual.dtype == dtype
    assert_close(actual, expected, reduction=shape[-1])


def test_epsilon_keeps_zeros_finite():
    zeros, ones = jnp.zeros((2, 8)), jnp.ones(8)
    assert np.all(np.asarray(rms_norm(zeros, ones, epsilon=1e-5)) == 0)
    assert np.all(np.asarray(layer_norm(zeros, ones, ones, epsilon=1e-5)) == 1)


def test_a_scale_of_another_size_is_named():
    with pytest.raises(ValueError, match=r"rms_norm.*\(7,\).*8"):
        rms_norm(jnp.zeros((2, 8)), jnp.ones(7), epsilon=1e-5)
    with pytest.raises(ValueError, match=r"layer_norm: bias.*\(7,\).*8"):
        layer_norm(jnp.zeros((2, 8)), jnp.ones(8), jnp.ones(7), epsilon=1e-5)
