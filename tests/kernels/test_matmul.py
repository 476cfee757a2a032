"""Flat GEMMs: every implementation against the definition."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.activations import ACTIVATIONS
from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.gated_matmul import OP as GATED
from fdjax.kernels.gated_matmul import gated_matmul
from fdjax.kernels.gated_matmul import reference as gated_reference
from fdjax.kernels.matmul import (
    OP,
    Matmul,
    cases,
    config,
    gemm,
    handler,
    matmul,
    persistent,
    reference,
)
from fdjax.kernels.matmul.params import PERSISTENT_ROWS, PersistentConfig
from fdjax.notation import Array
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
MOST_ROWS = {
    "gemv": config.MAX_GEMV_M,
    "flat": config.MAX_FLAT_M,
    "gemm": gemm.MAX_GEMM_M,
    "persistent": persistent.MAX_M,
}
MARKS = {
    "gemv": (),
    "flat": (pytest.mark.hopper,),
    "gemm": (pytest.mark.hopper,),
    "persistent": (pytest.mark.hopper,),
}
each_impl = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS[name]) for name in MOST_ROWS]
)


def _taken(values: Iterable[Any], rows: Callable[[Any], int]) -> list[Any]:
    """Each implementation with each value that has no more rows than it takes."""
    return [
        pytest.param(name, value, marks=MARKS[name])
        for name, most in MOST_ROWS.items()
        for value in values
        if rows(value) <= most
    ]


@pytest.fixture(autouse=True)
def _handler(request: pytest.FixtureRequest) -> None:
    if "gpu" in request.keywords:
        skip_without(handler.NAME, "gpu")


def _numpy(call: Matmul) -> np.ndarray:
    total = (
        np.asarray(call.x, np.float64) @ np.asarray(call.weight.values, np.float64).T
    )
    for term in (call.bias, call.residual):
        if term is not None:
            total = total + np.asarray(term, np.float64)
    return total


# --- The definition -------------------------------------------------------------------


@pytest.mark.parametrize("case", CI, ids=lambda case: case.name)
def test_the_definition_is_the_formula(case: Case[Matmul]):
    call = cases.arguments(case)
    actual = OP(call)
    assert actual.dtype == call.out_dtype
    assert_close(actual, _numpy(call), reduction=call.x.shape[1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gated_definition_is_two_linear_maps(activation: str):
    call = _gated(5, 48, 32, activation)
    x, weight, bias = call.x, call.weight, call.bias
    wide = matmul(x, weight, bias, out_dtype=jnp.float32)
    expected = ACTIVATIONS[activation](wide[:, :24]) * wide[:, 24:]
    actual = gated_matmul(x, weight, bias, activation=activation)
    assert_close(actual, expected, reduction=32)


# --- Every implementation -------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "case"),
    _taken(cases.CASES, lambda case: case.call.x.shape[0]),
    ids=lambda value: getattr(value, "name", value),
)
def test_agrees_with_the_definition(name: str, case: Case[Matmul]):
    if name in ("gemm", "persistent"):  # they write 16 bits
        case = dataclasses.replace(
            case, call=dataclasses.replace(case.call, out_dtype=case.call.x.dtype)
        )
    call = cases.arguments(case)
    wide = dataclasses.replace(call, out_dtype=jnp.float32)
    expected = jax.jit(reference.matmul)(wide)
    run = jax.jit(OP)
    with OP.using(name):
        actual, again = run(call), run(call)
    assert actual.dtype == call.out_dtype
    assert_close(actual, expected, reduction=call.x.shape[1])
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(again))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "m"), _taken((*range(1, 65), *range(65, 129, 9), 128, 129, 577), int)
)
def test_every_m(name: str, m: int):
    case = cases._case("odd", m=m, n=1032, k=520, bias=True, residual=True)
    call = cases.arguments(case, seed=m)
    with OP.using(name):
        actual = OP(call)
    assert_close(actual, _numpy(call), reduction=520)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 65, 130, 300])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("widens", [True, False])
def test_the_library_agrees(m: int, dtype: Any, widens: bool):
    case = cases._case(
        "odd",
        m=m,
        n=1032,
        k=520,
        bias=not widens,
        residual=not widens,
        float32=widens,
        dtype=dtype,
    )
    call = cases.arguments(case, seed=m)
    with OP.using("library"):
        actual = jax.jit(OP)(call)
    assert actual.dtype == (jnp.float32 if widens else dtype)
    assert_close(actual, _numpy(call), reduction=520)


CONFIGS = [
    config.FlatConfig(tiles, boxes, rows, splits, stages, narrow)
    for tiles, boxes, rows, splits, stages, narrow in [
        (1, 1, 64, 1, 2, 0),
        (1, 1, 8, 1, 16, 0),
        (1, 1, 16, 1, 16, 50),
        (1, 2, 48, 2, 5, 0),
        (1, 2, 48, 2, 5, 9),
        (1, 1, 56, 8, 3, 0),
        (2, 1, 40, 1, 4, 0),
        (2, 1, 40, 1, 4, 6),
        (2, 2, 56, 2, 2, 0),
        (2, 2, 56, 2, 2, 12),  # all of them, and one for nobody
        (2, 1, 64, 4, 3, 0),
        (2, 1, 64, 4, 3, 1),
    ]
]


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("flat", CONFIGS, ids=str)
@pytest.mark.parametrize("m", [1, 8, 13, 32, 64])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_launch_config_of_flat(flat: config.FlatConfig, m: int, dtype: Any):
    case = cases._case("odd", m=m, n=1032, k=712, residual=True, dtype=dtype)
    call = cases.arguments(case, seed=m)
    assert_close(handler.run(call, flat), _numpy(call), reduction=712)
    if flat.tiles == 2:
        call = _gated(m, 1072, 264, "silu")
        expected = gated_reference.gated_matmul(call)
        assert_close(handler.run(call, flat), expected, reduction=264)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("way", gemm.CONFIGS, ids=str)
@pytest.mark.parametrize("m", [1, 65, 100, 128])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_launch_config_of_gemm(way: gemm.GemmConfig, m: int, dtype: Any):
    case = cases._case("odd", m=m, n=1032, k=712, residual=True, dtype=dtype)
    call = cases.arguments(case, seed=m)
    assert_close(handler.run(call, way), _numpy(call), reduction=712)
    call = _gated(m, 1072, 264, "silu")
    expected = gated_reference.gated_matmul(call)
    assert_close(handler.run(call, way), expected, reduction=264)


PERSISTENT = [
    PersistentConfig(rows, band, shares)
    for rows in PERSISTENT_ROWS
    for band, shares in [(1, True), (2, False), (16, True), (16, False)]
]


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("way", PERSISTENT, ids=str)
@pytest.mark.parametrize("m", [1, 64, 130, 300, 577])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_launch_config_of_persistent(way: PersistentConfig, m: int, dtype: Any):
    case = cases._case("odd", m=m, n=1032, k=712, residual=True, dtype=dtype)
    call = cases.arguments(case, seed=m)
    assert_close(handler.run(call, way), _numpy(call), reduction=712)
    for activation in ("silu", "gelu_tanh"):
        call = dataclasses.replace(_gated(m, 1072, 264, activation), bias=None)
        expected = gated_reference.gated_matmul(call)
        assert_close(handler.run(call, way), expected, reduction=264)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("rows", PERSISTENT_ROWS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_handler_runs_the_tile_that_it_is_told(
    activation: str, bias: bool, rows: int
):
    call = _gated(130, 1072, 264, activation)
    call = call if bias else dataclasses.replace(call, bias=None)
    way = PersistentConfig(rows, 8, shares_weights=True)
    if way in persistent.configs(130, activation=activation, bias=bias):
        expected = gated_reference.gated_matmul(call)
        assert_close(handler.run(call, way), expected, reduction=264)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="invalid argument"):
            handler.run(call, way).block_until_ready()


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("way", PERSISTENT, ids=str)
def test_persistent_blocks_take_tile_after_tile(way: PersistentConfig):
    """More tiles than an H200 has SMs several times over, with few steps of K."""
    case = cases._case("odd", m=2000, n=12296, k=72, bias=True, residual=True)
    call = cases.arguments(case)
    run = jax.jit(functools.partial(handler.run, config=way))
    actual, again = run(call), run(call)
    assert_close(actual, _numpy(call), reduction=72)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(again))


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("m", [65, 128])
def test_more_rows_than_a_wave_of_blocks_takes(m: int):
    """Llama-3-70B's gate and up rows: 224 blocks of 256."""
    call = _gated(m, 57344, 136, "silu")
    with GATED.using("gemm"):
        actual = jax.jit(GATED)(call)
    assert_close(actual, gated_reference.gated_matmul(call), reduction=136)


def _gated(m: int, n: int, k: int, activation: str) -> Matmul:
    case = cases._case("gated", m=m, n=n, k=k, bias=True)
    return dataclasses.replace(cases.arguments(case, seed=m), activation=activation)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2 * 1032, 520), (16, 8), (28672, 4096)], ids=str)
@pytest.mark.parametrize(("name", "m"), _taken([1, 2, 4, 8, 17, 64, 130], int))
def test_gated_agrees_with_the_definition(
    name: str, m: int, shape: tuple[int, int], activation: str
):
    call = _gated(m, *shape, activation)
    expected = gated_reference.gated_matmul(call)
    with GATED.using(name):
        actual = GATED(call)
    assert_close(actual, expected, reduction=shape[1])


@pytest.mark.gpu
@each_impl
def test_writes_every_element_and_no_other(name: str):
    """The result is the only thing that a donated, poisoned buffer holds afterwards."""
    case = cases._case("poisoned", m=3, n=1032, k=520)
    call = cases.arguments(case)
    poison = jnp.full((3, 1032), jnp.nan, jnp.bfloat16)

    def step(poison: Array, call: Matmul) -> Array:
        return jnp.where(jnp.isnan(poison), OP(call), poison)

    with OP.using(name):
        actual = jax.jit(step, donate_argnums=0)(poison, call)
    assert_close(actual, _numpy(call), reduction=520)


@pytest.mark.gpu
@each_impl
def test_vmap_is_a_loop(name: str):
    case = cases._case("vmap", m=2, n=64, k=128)
    call = cases.arguments(case)
    x, weight = call.x, call.weight
    with OP.using(name):
        actual = jax.vmap(lambda x: matmul(x, weight))(jnp.stack([x, 2 * x]))
        expected = jnp.stack([matmul(x, weight), matmul(2 * x, weight)])
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
