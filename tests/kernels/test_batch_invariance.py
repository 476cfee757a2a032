"""Implementations that say they are batch-invariant: the bits of a row are its own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import Unsupported
from fdjax.kernels import op
from fdjax.kernels.add_norm import OP as ADD_NORM
from fdjax.kernels.add_norm import AddNorm
from fdjax.kernels.add_norm import reference as add_norm_reference
from fdjax.kernels.gated_activation import gated_activation
from fdjax.kernels.gated_matmul import OP as GATED
from fdjax.kernels.gated_matmul import gated_matmul
from fdjax.kernels.gated_matmul import reference as gated_reference
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.matmul import Matmul, matmul, reference
from fdjax.kernels.row_sum import OP as ROW_SUM
from fdjax.kernels.row_sum import RowSum, row_sum
from fdjax.kernels.weight import Dense
from tests.support.numerics import assert_close

pytestmark = pytest.mark.cpu

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# Below, at and above three rows of a tile, 48 of a block, and 4,096 elements in all.
ROWS = (1, 2, 3, 4, 5, 16, 47, 49, 96)
# Columns of x, and of the result: no lane full, some left over, two partial sums.
SIZES = ((5, 3), (80, 33), (97, 130), (1031, 64))

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
each_size = pytest.mark.parametrize(("size", "columns"), SIZES)


def _draw(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(0.5, 2.0, shape), dtype)


def _assert_rows_are_their_own(
    function: Callable[..., jax.Array], *arrays: jax.Array
) -> None:
    """Compiled for other numbers of rows, and at other places, a row has its bits."""
    run = jax.jit(function)
    # NumPy's slices are no programs.
    held = [np.asarray(array) for array in arrays]
    with op.batch_invariant():
        whole = np.asarray(run(*arrays))
        for count in ROWS:
            for first in (0, len(whole) - count):
                rows = slice(first, first + count)
                part = np.asarray(run(*(array[rows] for array in held)))
                np.testing.assert_array_equal(part, whole[rows], strict=True)


# --- Bits -----------------------------------------------------------------------------


@each_size
def test_linear_maps(size: int, columns: int):
    weight, bias = Dense(_draw(columns, size, seed=1)), _draw(columns, seed=2)
    x, residual = _draw(100, size), _draw(100, columns, seed=3)
    _assert_rows_are_their_own(lambda x, r: matmul(x, weight, bias, r), x, residual)


def test_gated_linear_maps():
    x, weight = _draw(100, 97), Dense(_draw(66, 97, seed=1))
    _assert_rows_are_their_own(lambda x: gated_matmul(x, weight, activation="silu"), x)
    _assert_rows_are_their_own(
        lambda x: gated_activation(x, activation="gelu_tanh"), _draw(100, 66)
    )


@pytest.mark.parametrize("delta_norm", [False, True], ids=["", "delta"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("size", [5, 80, 97])
def test_norms(size: int, has_bias: bool, delta_norm: bool):
    scale = _draw(size, seed=1)
    bias = _draw(size, seed=2) if has_bias else None
    of_delta = _draw(size, seed=4) if delta_norm else None

    def normal(x: jax.Array, delta: jax.Array) -> jax.Array:
        return ADD_NORM(AddNorm(x, delta, scale, bias, 1e-5, 0.0, of_delta)).normal

    _assert_rows_are_their_own(normal, _draw(100, size), _draw(100, size, seed=3))


@pytest.mark.parametrize("size", [5, 80, 97])
def test_sums(size: int):
    _assert_rows_are_their_own(row_sum, _draw(100, size))


# --- Results --------------------------------------------------------------------------


@each_dtype
@each_size
def test_linear_maps_agree_with_the_definition(size: int, columns: int, dtype: Any):
    x, weight = _draw(7, size, dtype=dtype), _draw(columns, size, dtype=dtype, seed=1)
    call = Matmul(x, Dense(weight), None, None, activation=None, out_dtype=jnp.float32)
    with MATMUL.using("cpu"):
        actual = MATMUL(call)
    assert_close(actual, reference.matmul(call), reduction=size)
    gated = dataclasses.replace(
        call,
        weight=Dense(weight[: columns // 2 * 2] / 64),
        activation="silu",
        out_dtype=dtype,
    )
    with GATED.using("cpu"):
        actual = GATED(gated)
    assert actual.dtype == dtype
    assert_close(actual, gated_reference.gated_matmul(gated), reduction=size)


@each_dtype
@pytest.mark.parametrize(
    ("has_delta", "delta_norm"),
    [(False, False), (True, False), (True, True)],
    ids=["", "add", "norm_add"],
)
@pytest.mark.parametrize("has_bias", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 5, 97), (9, 4096)])
def test_norms_agree_with_the_definition(
    shape: tuple[int, ...],
    has_bias: bool,
    has_delta: bool,
    delta_norm: bool,
    dtype: Any,
):
    x, delta = _draw(*shape, dtype=dtype), _draw(*shape, dtype=dtype, seed=1)
    scale, bias, of_delta = (
        _draw(shape[-1], dtype=dtype, seed=seed) for seed in (2, 3, 4)
    )
    call = AddNorm(
        x,
        delta if has_delta else None,
        scale,
        bias if has_bias else None,
        1e-5,
        1.0,
        of_delta if delta_norm else None,
    )
    expected = add_norm_reference.add_norm(call)
    with ADD_NORM.using("cpu"):
        actual = ADD_NORM(call)
    if delta_norm:
        assert_close(actual.x, expected.x, reduction=shape[-1])
    else:
        np.testing.assert_array_equal(actual.x, expected.x, strict=True)
    assert_close(actual.normal, expected.normal, reduction=shape[-1])


def test_sums_agree_with_the_definition():
    x = _draw(2, 3, 1031)
    with ROW_SUM.using("cpu"):
        actual = row_sum(x)
    assert_close(actual, jnp.sum(x, axis=-1, keepdims=True), reduction=1031)


# --- Which implementations ------------------------------------------------------------


def test_they_serve_only_where_they_are_wanted():
    x, weight = _draw(2, 8), _draw(4, 8)
    call = Matmul(x, Dense(weight), None, None, activation=None, out_dtype=jnp.float32)
    assert MATMUL.choice(call) == "reference"
    assert ROW_SUM.choice(RowSum(x)) == "reference"
    with op.batch_invariant():
        assert MATMUL.choice(call) == "cpu"
        assert ROW_SUM.choice(RowSum(x)) == "cpu"
        with op.batch_invariant(False):
            assert MATMUL.choice(call) == "reference"


def test_what_they_do_not_take_is_named():
    x, weight = _draw(2, 8), _draw(4, 8, dtype=jnp.bfloat16)
    call = Matmul(x, Dense(weight), None, None, activation=None, out_dtype=jnp.float32)
    with op.batch_invariant(), pytest.raises(Unsupported, match="weight bfloat16"):
        MATMUL.choice(call)
    with pytest.raises(ValueError, match="x is bfloat16; it must be float32"):
        row_sum(weight)
    empty = dataclasses.replace(call, x=_draw(2, 0), weight=_draw(4, 0))
    assert MATMUL.refuse("cpu", empty) == "K is 0; it takes 1 and more"
