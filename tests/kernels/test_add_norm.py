"""`add_norm`: the definition against its formula, the kernel against the definition."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.add_norm import OP, AddNorm, Normalised, add_norm, cuda, reference
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

SHAPES = [(1, 8), (3, 80), (2, 5, 97), (4, 4096), (2, 12288)]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]

each_kind = pytest.mark.parametrize("has_bias", [False, True], ids=["rms", "layer"])
each_delta = pytest.mark.parametrize(
    ("has_delta", "delta_norm"),
    [(False, False), (True, False), (True, True)],
    ids=["", "add", "norm_add"],
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


def _draw(
    shape: tuple[int, ...],
    dtype: Any,
    *,
    has_delta: bool = True,
    has_bias: bool = True,
    offset: float = 0.0,
    delta_norm: bool = False,
) -> AddNorm:
    random = np.random.default_rng(0)
    x, delta, scale, bias, delta_scale = (
        jnp.asarray(random.normal(0.5, 2.0, shape), dtype)
        for shape in (shape, shape, *[shape[-1:]] * 3)
    )
    return AddNorm(
        x,
        delta if has_delta else None,
        scale,
        bias if has_bias else None,
        epsilon=1e-5,
        scale_offset=offset,
        delta_scale=delta_scale if delta_norm else None,
    )


def _wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


# --- The definition -------------------------------------------------------------------


@each_dtype
@each_kind
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_definition_is_the_formula(
    shape: tuple[int, ...], dtype: Any, has_bias: bool, offset: float
):
    call = _draw(shape, dtype, has_bias=has_bias, offset=offset)
    actual = jax.jit(reference.add_norm)(call)
    assert call.delta is not None
    np.testing.assert_array_equal(actual.x, call.x + call.delta)
    wide = _wide(actual.x)
    if has_bias:
        wide = wide - np.mean(wide, axis=-1, keepdims=True)
    mean_square = np.mean(wide**2, axis=-1, keepdims=True)
    expected = wide / np.sqrt(mean_square + 1e-5) * (_wide(call.scale) + offset)
    if call.bias is not None:
        expected = expected + _wide(call.bias)
    assert actual.normal.dtype == dtype
    assert_close(actual.normal, expected, reduction=shape[-1])


@each_dtype
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_of_the_delta_is_that_of_two_calls(dtype: Any, offset: float):
    call = _draw((2, 5, 97), dtype, offset=offset, delta_norm=True)
    assert call.delta is not None
    assert call.delta_scale is not None
    norm = functools.partial(add_norm, epsilon=1e-5, scale_offset=offset)
    delta = norm(call.delta, None, call.delta_scale).normal
    expected = norm(call.x, delta, call.scale, call.bias)
    actual = OP(call)
    np.testing.assert_array_equal(actual.x, expected.x)
    np.testing.assert_array_equal(actual.normal, expected.normal)


def test_a_delta_scale_wants_a_delta():
    ones = jnp.ones(8)
    with pytest.raises(ValueError, match="a delta_scale, and no delta; leave it out"):
        add_norm(jnp.ones((2, 8)), None, ones, epsilon=1e-5, delta_scale=ones)


def test_without_a_delta_x_is_the_sum():
    call = _draw((3, 80), jnp.float32, has_delta=False)
    actual = OP(call)
    assert actual.x is call.x
    zeros = jnp.zeros_like(call.x)
    added = add_norm(call.x, zeros, call.scale, call.bias, epsilon=1e-5)
    np.testing.assert_array_equal(actual.normal, added.normal)


def test_epsilon_keeps_zeros_finite():
    zeros, ones = jnp.zeros((2, 8)), jnp.ones(8)
    assert np.all(np.asarray(add_norm(zeros, None, ones, epsilon=1e-5).normal) == 0)
    layer = add_norm(zeros, None, ones, ones, epsilon=1e-5)
    assert np.all(np.asarray(layer.normal) == 1)


@pytest.mark.parametrize("name", ["delta", "scale", "bias", "delta_scale"])
def test_an_operand_of_another_size_is_named(name: str):
    operands: dict[str, Any] = {
        "delta": jnp.ones((2, 8)),
        **{key: jnp.ones(8) for key in ("scale", "bias", "delta_scale")},
        name: jnp.ones(7),
    }
    message = rf"add_norm: {name} has shape \(7,\), x has \(2, 8\)"
    with pytest.raises(ValueError, match=message):
        add_norm(jnp.zeros((2, 8)), **operands, epsilon=1e-5)


# --- The kernel -----------------------------------------------------------------------


@pytest.mark.usefixtures("on_h200")
def test_what_the_kernel_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda.ffi, "refuse", lambda name, platform: None)
    assert OP.refuse("cuda", _draw((3, 80), jnp.bfloat16)) is None
    assert "194 bytes" in str(OP.refuse("cuda", _draw((3, 97), jnp.bfloat16)))
    assert "32800 bytes" in str(OP.refuse("cuda", _draw((1, 16400), jnp.bfloat16)))
    mixed = AddNorm(jnp.ones((2, 8)), None, jnp.ones(8, jnp.bfloat16), None, 1e-5, 0.0)
    assert "bfloat16, float32" in str(OP.refuse("cuda", mixed))


@pytest.mark.gpu
@each_dtype
@each_kind
@each_delta
@pytest.mark.parametrize("shape", [(1, 8), (300, 4096), (3, 5, 1160), (2, 8192)])
def test_the_kernel_agrees_with_the_definition(
    shape: tuple[int, ...],
    dtype: Any,
    has_bias: bool,
    has_delta: bool,
    delta_norm: bool,
):
    skip_without(cuda.NAME, "gpu")
    deltas = {"has_delta": has_delta, "delta_norm": delta_norm}
    call = _draw(shape, dtype, has_bias=has_bias, offset=1.0, **deltas)
    expected = jax.jit(reference.add_norm)(call)
    with OP.using("cuda"):
        actual = jax.jit(OP)(call)
    if delta_norm:
        assert_close(actual.x, expected.x, reduction=shape[-1])
    else:
        np.testing.assert_array_equal(actual.x, expected.x)
    assert_close(actual.normal, expected.normal, reduction=shape[-1])


@pytest.mark.gpu
def test_the_kernel_writes_every_element():
    """The normal is all that a donated, poisoned buffer holds afterwards."""
    skip_without(cuda.NAME, "gpu")
    call = _draw((7, 4096), jnp.bfloat16)

    def step(call: AddNorm, poison: jax.Array) -> Normalised:
        result = OP(call)
        return Normalised(jnp.where(jnp.isnan(poison), result.normal, 0), result.x)

    expected = jax.jit(reference.add_norm)(call)
    compiled = jax.jit(step, donate_argnums=1)
    with OP.using("cuda"):
        actual = compiled(call, jnp.full((7, 4096), jnp.nan, jnp.bfloat16))
    assert_close(actual.normal, expected.normal, reduction=4096)
    np.testing.assert_array_equal(actual.x, expected.x)
