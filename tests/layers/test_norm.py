"""Normalisations as their specifications declare them, against NumPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import LayerNorm, Norm, RmsNorm
from fdjax.layers import Normalisation
from tests.support.numerics import assert_close

SIZE = 97
RMS = RmsNorm(1e-3)
GEMMA = RmsNorm(1e-6, scale_offset=1.0)
LAYER = LayerNorm(1e-1)

each_spec = pytest.mark.parametrize("spec", [RMS, GEMMA, LAYER], ids=str)
each_dtype = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])


def drawn(*shape: int, seed: int, dtype: Any = jnp.float32) -> Any:
    values = np.random.default_rng(seed).normal(0.5, 0.3, shape)
    return jnp.asarray(values, dtype)


def filled(spec: Norm, dtype: Any) -> Normalisation:
    norm = Normalisation(spec, SIZE, dtype=dtype)
    norm.scale.set_value(drawn(SIZE, seed=1, dtype=dtype))
    if norm.bias is not None:
        norm.bias.set_value(drawn(SIZE, seed=2, dtype=dtype))
    return norm


def expected(spec: Norm, x: Any, norm: Normalisation) -> np.ndarray:
    wide, scale = (np.asarray(a).astype(np.float64) for a in (x, norm.scale[...]))
    if isinstance(spec, RmsNorm):
        root = np.sqrt((wide**2).mean(-1, keepdims=True) + spec.epsilon)
        return wide / root * (scale + spec.scale_offset)
    assert norm.bias is not None
    root = np.sqrt(wide.var(-1, keepdims=True) + spec.epsilon)
    bias = np.asarray(norm.bias[...]).astype(np.float64)
    return (wide - wide.mean(-1, keepdims=True)) / root * scale + bias


@each_dtype
@each_spec
@pytest.mark.parametrize("shape", [(5, SIZE), (2, 3, SIZE)], ids=["tokens", "heads"])
def test_a_norm_is_its_formula(spec: Norm, dtype: Any, shape: tuple[int, ...]):
    norm, x = filled(spec, dtype), drawn(*shape, seed=3, dtype=dtype)
    found = norm(x)
    assert (found.dtype, found.shape) == (x.dtype, shape)
    assert_close(found, expected(spec, x, norm), reduction=SIZE)


@each_spec
def test_what_is_added_comes_first(spec: Norm):
    norm, x, delta = (
        filled(spec, jnp.float32),
        drawn(5, SIZE, seed=3),
        drawn(5, SIZE, seed=4),
    )
    normal, total = norm.add(x, delta)
    np.testing.assert_array_equal(total, x + delta)
    assert_close(normal, expected(spec, total, norm), reduction=SIZE)


def test_only_layer_normalisation_has_a_bias():
    assert Normalisation(RMS, SIZE, dtype=jnp.float32).bias is None
    assert Normalisation(LAYER, SIZE, dtype=jnp.float32).bias is not None
