"""`decode_attention` in C++ on a CPU: vectors, threads, and what it does not take."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import ffi
from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import (
    OP,
    DecodeAttention,
    cases,
    cpu,
    decode_attention,
    handler,
)
from fdjax.kernels.paged import KVCache, KVLayer, PageView
from fdjax.notation import Array
from tests.support.decode_calls import structs, with_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
TALES = next(case for case in CI if case.name == "tales_5m")


@pytest.fixture(autouse=True)
def _on_a_cpu() -> None:
    skip_without(handler.NAME, "cpu")


def _served(call: DecodeAttention) -> Array:
    with OP.using("cpu"):
        return OP(call)[0]


def _attended(*args: Any) -> Array:
    """Of a plain call."""
    with OP.using("cpu"):
        return decode_attention(*args, scale=1.0)[0]


def _layer(kv: np.ndarray) -> KVLayer:
    """The one of a page-major array."""
    return KVCache.page_major(jnp.asarray(kv)).layer(0)


def test_it_serves_where_nothing_is_said():
    assert OP.choice(TALES.call) == "cpu"


# --- Vectors --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CI, ids=lambda case: case.name)
def test_machines_without_vectors_of_eight_agree(
    case: Case[DecodeAttention], monkeypatch: pytest.MonkeyPatch
):
    call = cases.arguments(case)
    expected = _served(call)
    monkeypatch.setattr(cpu, "MAX_LANES", 4)
    actual = _served(call)
    assert_close(actual, np.asarray(expected), reduction=call.max_tokens)


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_value_of_16_bits_is_read_and_rounded_right(
    dtype: Any, lanes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cpu, "MAX_LANES", lanes)
    # One token a row: its value is the result. Heads of 67 have a rest of 3.
    values = np.resize(np.arange(2**16, dtype=np.uint16), 979 * 67).view(dtype)
    kv = np.zeros((979, 1, 2, 1, 1, 67), dtype)
    kv[:, 0, 1, 0, 0] = values.reshape(979, 67)
    table, lengths = jnp.arange(979, dtype=jnp.int32)[:, None], jnp.ones(979, jnp.int32)
    args = (
        jnp.zeros((979, 1, 67), dtype),
        _layer(kv),
        PageView.decoding(table, lengths),
    )
    actual = np.asarray(_attended(*args)).ravel()
    np.testing.assert_array_equal(_flushed(actual), _flushed(values))


def _flushed(x: np.ndarray) -> np.ndarray:
    """In float32, whose subnormals XLA flushes to zero on a CPU."""
    x = x.astype(np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


@pytest.mark.parametrize("lanes", [4, 8])
def test_weights_are_exponentials_from_one_to_nothing(
    lanes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cpu, "MAX_LANES", lanes)
    # Two tokens a row: scores 0 and -x, values 0 and 1.
    x = np.concatenate([np.linspace(0, 87, 4000), [90, 1e3, 1e30]]).astype(np.float32)
    kv = np.zeros((len(x), 1, 2, 2, 1, 1), np.float32)
    kv[:, 0, 0, 1, 0, 0], kv[:, 0, 1, 1] = -x, 1
    table = jnp.arange(len(x), dtype=jnp.int32)[:, None]
    lengths = jnp.full(len(x), 2, jnp.int32)
    args = (jnp.ones((len(x), 1, 1)), _layer(kv), PageView.decoding(table, lengths))
    actual = np.asarray(_attended(*args), np.float64).ravel()
    weight = np.exp(-x.astype(np.float64))
    expected = weight / (1 + weight)
    np.testing.assert_allclose(actual[:4000], expected[:4000], rtol=1e-6)
    assert not actual[4000:].any()


def test_a_query_that_is_not_a_number_gives_none():
    call = cases.arguments(TALES)
    out = _served(dataclasses.replace(call, q=call.q.at[3, 1].set(jnp.nan)))
    wrong = np.isnan(np.asarray(out)).any(axis=-1)
    assert wrong[3, 1]
    assert wrong.sum() == 1


# --- Pages ----------------------------------------------------------------------------


def _with_pages(table: Array, lengths: Array) -> DecodeAttention:
    return with_pages(cases.arguments(TALES), table, lengths)


def test_absent_pages_are_as_if_not_there():
    num_pages = TALES.call.kv.cache.num_pages
    ids = np.arange(80, dtype=np.int32).reshape(8, 10)
    whole, lengths = jnp.asarray(ids), jnp.full(8, 160, jnp.int32)
    holes = whole.at[:, 2].set(num_pages).at[:, 5].set(-1)
    shorter = jnp.asarray(np.delete(ids, [2, 5], axis=1))
    actual = _served(_with_pages(holes, lengths))
    expected = _served(_with_pages(shorter, lengths - 32))
    assert_close(actual, np.asarray(expected), reduction=160)
    nothing = jnp.full_like(whole, num_pages)
    assert not _served(_with_pages(nothing, lengths)).any()


@pytest.mark.parametrize("length", [-1, 161, 2**31 - 1])
def test_lengths_beyond_the_table_read_nothing_else(length: int):
    table = jnp.arange(80, dtype=jnp.int32).reshape(8, 10)
    actual = _served(_with_pages(table, jnp.full(8, length, jnp.int32)))
    held = jnp.full(8, max(min(length, 160), 0), jnp.int32)
    expected = _served(_with_pages(table, held))
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


# --- Threads --------------------------------------------------------------------------


def test_rows_served_by_many_threads_are_rows_served_alone():
    case = cases._case(
        "many", rows=40, q_heads=8, kv_heads=4, head_dim=64, tokens=200,
        dtype=jnp.float32,
    )  # fmt: skip
    call = cases.arguments(case)

    def row(i: int) -> DecodeAttention:
        q, pages = jax.tree.map(lambda array: array[i : i + 1], (call.q, call.pages))
        return dataclasses.replace(call, q=q, pages=pages)

    alone = [_served(row(i)) for i in range(40)]
    for _ in range(20):
        np.testing.assert_array_equal(_served(call), np.concatenate(alone))


def test_vmap_over_queries_is_a_loop():
    call = cases.arguments(TALES)

    def queries(x: Array) -> Array:
        return _served(dataclasses.replace(call, q=x))

    actual = jax.vmap(queries)(jnp.stack([call.q, 2 * call.q]))
    expected = jnp.stack([queries(call.q), queries(2 * call.q)])
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


# --- What it does not take ------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": jnp.float64}, "q is float64"),
        ({"head_dim": 1024}, None),
        ({"head_dim": 1025}, "head size 1025; it takes 1 to 1024"),
        ({"page_size": 1}, None),
        ({"page_size": 1000}, None),
        ({"width": 2**22}, "pages for 67108864 tokens"),
        ({"pages": 2**26}, "2147483648 slots"),
        ({"integer": jnp.int16}, "page_table is int16"),
    ],
)
def test_refuses_what_the_handler_does_not_take(
    change: dict[str, Any], reason: str | None
):
    sizes: dict[str, Any] = {"dtype": jnp.float32, "head_dim": 64, "group": 40}
    actual = cpu.refuse_arguments(structs(**{**sizes, **change}))
    assert actual is None if reason is None else reason in str(actual)


type Arrays = dict[str, Any]


def _arrays() -> Arrays:
    return {
        "q": jnp.zeros((3, 4, 8)),
        "kv": jnp.zeros((2, 3, 2, 4, 2, 8)),
        "page_table": jnp.zeros((3, 2), jnp.int32),
        "lengths": jnp.zeros(3, jnp.int32),
        "slopes": jnp.zeros(0),
        "sinks": jnp.zeros(0),
        "layer": np.int64(0),
        "window": np.int64(1),
        "unified": np.bool_(True),
    }


def _call(arrays: Arrays) -> None:
    names = ("q", "kv", "page_table", "lengths", "slopes", "sinks")
    out = jax.ShapeDtypeStruct(arrays["q"].shape, arrays["q"].dtype)
    counts = jax.ShapeDtypeStruct((3, 2), jnp.int32)
    zero = np.float32(0)
    scores = ffi.Attributes(scale=zero, soft_cap=zero, window=arrays["window"])
    attributes = ffi.Attributes(
        attention=ffi.Attributes(layer=arrays["layer"], scores=scores),
        scheme=ffi.Attributes(unified=arrays["unified"], phi=zero, low=zero, high=zero),
        max_lanes=np.int64(8),
    )
    call = jax.ffi.ffi_call(ffi.target(handler.NAME), (out, counts))
    jax.block_until_ready(call(*(arrays[n] for n in names), attributes=attributes))


BAD_CALLS: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "head_size": (
        lambda a: a.update(kv=jnp.zeros((2, 3, 2, 4, 2, 6))),
        r"kv: dimension D \(axis 5\) is 6, but q has D = 8",
    ),
    "large_head": (
        lambda a: a.update(
            q=jnp.zeros((3, 4, 1025)), kv=jnp.zeros((2, 3, 2, 4, 2, 1025))
        ),
        "D is 1025; the handler takes 1 to 1024",
    ),
    "heads": (lambda a: a.update(q=jnp.zeros((3, 5, 8))), "Hq = 5 .* Hkv = 2"),
    "rows": (lambda a: a.update(lengths=jnp.zeros(4, jnp.int32)), "lengths: .* B"),
    "slopes": (lambda a: a.update(slopes=jnp.zeros(3)), "slopes: dimension Hq"),
    "sinks": (lambda a: a.update(sinks=jnp.zeros(3)), "sinks: dimension Hq"),
    "layer": (lambda a: a.update(layer=np.int64(3)), "layer is 3; .* 0 to 2"),
    "window": (lambda a: a.update(window=np.int64(0)), "window is 0; .* 1 to"),
    "scheme": (lambda a: a.update(unified="other"), "Wrong attribute type"),
    "dtype": (
        lambda a: a.update(
            q=jnp.zeros((3, 4, 8), jnp.int32),
            kv=jnp.zeros((2, 3, 2, 4, 2, 8), jnp.int32),
        ),
        "q has element type 4; the handler takes float32, bfloat16 and float16",
    ),
    "mixed_dtypes": (
        lambda a: a.update(kv=jnp.zeros((2, 3, 2, 4, 2, 8), jnp.float16)),
        "kv has element type 10, but q has 11",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_come_back_as_errors(name: str):
    spoil, message = BAD_CALLS[name]
    arrays = _arrays()
    _call(arrays)
    spoil(arrays)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        _call(arrays)
