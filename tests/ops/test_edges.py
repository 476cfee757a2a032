"""Calls with nothing to do, or with rows that are not as they should be."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import Unsupported, ops
from fdjax.kernels.attention_states import OP as STATES
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.op import REFERENCE
from fdjax.kernels.paged import is_float32
from fdjax.kernels.prefill_attention import OP as PREFILL
from tests.support.numerics import assert_close

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, ROWS = 4, 2, 8, 4, 3
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


CACHES = {
    "page_major": ops.KVCache.page_major(
        normal(12, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    ),
    "interleaved": ops.KVCache.interleaved(
        normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    ),
    "packed and padded": ops.KVCache.interleaved(
        normal(12, PAGE_SIZE, KV_HEADS, 2, 16), head_dim=HEAD_DIM
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_no_tokens_are_rotated_and_written(name: str):
    cache, none = CACHES[name], jnp.zeros(0, jnp.int32)
    qkv = normal(0, HEADS + 2 * KV_HEADS, HEAD_DIM)

    def loss(qkv: jax.Array) -> Any:
        q, after = ops.rope_and_write(qkv, cache.layer(0), none, none, jnp.ones(4))
        return q.sum(), (q, after)

    gradient, (q, after) = jax.jit(jax.grad(loss, has_aux=True))(qkv)
    assert gradient.shape == qkv.shape
    assert q.shape == (0, HEADS, HEAD_DIM)
    np.testing.assert_array_equal(after.array, cache.array)


STATIC = ("scale", "soft_cap", "window")
KV = CACHES["page_major"].layer(0)
NO_PAGES, LENGTHS = jnp.zeros((ROWS, 0), jnp.int32), jnp.asarray([1, 0, 9], jnp.int32)
WITHOUT_PAGES = {
    "whole": ops.PageView(NO_PAGES, LENGTHS),
    "packed": ops.PageView.packed(NO_PAGES, LENGTHS, LENGTHS - 1),
    "decoding": ops.PageView.decoding(NO_PAGES, LENGTHS),
    "by slot": ops.PageView(NO_PAGES, LENGTHS, by_slot=True),
}


@pytest.mark.parametrize("rows", WITHOUT_PAGES)
def test_rows_of_a_table_without_columns_see_nothing(rows: str):
    pages, q = WITHOUT_PAGES[rows], normal(ROWS, HEADS, HEAD_DIM)
    sinks = normal(HEADS)
    for given in (None, sinks):
        out = ops.attention(q, KV, pages, None, given, scale=0.3)
        np.testing.assert_array_equal(out, jnp.zeros_like(q))
    gradient = jax.grad(lambda q: ops.attention(q, KV, pages, scale=0.3).sum())(q)
    np.testing.assert_array_equal(gradient, jnp.zeros_like(q))
    assert (pages.slots(ROWS, page_size=PAGE_SIZE) == -1).all()
    if rows == "by slot":
        return
    state = ops.attention_states(q, KV, pages, scale=0.3)
    np.testing.assert_array_equal(state.output, jnp.zeros_like(q))
    assert (state.log_sum == -jnp.inf).all()
    state = ops.attention_states(q, KV, pages, None, sinks, scale=0.3)
    np.testing.assert_allclose(state.log_sum, jnp.tile(sinks, (ROWS, 1)), rtol=1e-6)


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("mode", ["mixed", "decode"])
@pytest.mark.parametrize("flat", [False, True])
def test_ragged_rows_of_a_table_without_columns(update: bool, mode: Any, flat: bool):
    kv_cache = CACHES["interleaved"].array
    out, after = ops.ragged_paged_attention(
        normal(ROWS, HEADS, HEAD_DIM),
        normal(ROWS, KV_HEADS, HEAD_DIM),
        normal(ROWS, KV_HEADS, HEAD_DIM),
        kv_cache,
        LENGTHS,
        NO_PAGES.reshape(-1) if flat else NO_PAGES,
        jnp.arange(ROWS + 1, dtype=jnp.int32),
        jnp.full(3, ROWS, jnp.int32),
        sm_scale=0.3,
        mode=mode,
        update_kv_cache=update,
    )
    assert (out == 0).all()
    np.testing.assert_array_equal(after, kv_cache)


# Of one page each, and of 4: the second row has as many tokens as its table has room.
TABLE, LONG = jnp.asarray([[0], [4], [8]], jnp.int32), jnp.asarray([7, 4, 3], jnp.int32)
BY_SLOT = TABLE * PAGE_SIZE + jnp.arange(PAGE_SIZE, dtype=jnp.int32)
LONGER = {
    "last": ops.PageView(TABLE, LONG, LONG - 1),
    "packed": ops.PageView.packed(TABLE, LONG, LONG - 1),
    "decoding": ops.PageView.decoding(TABLE, LONG),
    "by slot": ops.PageView(BY_SLOT, LONG, by_slot=True),
}


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("rows", LONGER)
def test_a_query_past_its_table_finds_nothing(rows: str, window: int | None):
    """In every kind of row; not what the last one that there is room for finds."""
    q, alone = normal(ROWS, HEADS, HEAD_DIM), ops.PageView.decoding(TABLE[1:], LONG[1:])
    expected = ops.attention(q[1:], KV, alone, scale=0.3, window=window)
    for function in (ops.attention, jax.jit(ops.attention, static_argnames=STATIC)):
        found = function(q, KV, LONGER[rows], scale=0.3, window=window)
        assert not found[0].any()
        assert_close(found[1:], expected, reduction=64)
    if rows != "by slot":
        state = ops.attention_states(q, KV, LONGER[rows], scale=0.3, window=window)
        assert not state.output[0].any()
        assert_close(state.output[1:], expected, reduction=64)


@pytest.mark.parametrize("mode", ["mixed", "decode"])
def test_a_ragged_query_past_its_table_finds_nothing(mode: Any):
    q, new = normal(ROWS, HEADS, HEAD_DIM), normal(ROWS, KV_HEADS, HEAD_DIM)
    cache = CACHES["interleaved"]
    out, after = ops.ragged_paged_attention(
        q,
        new,
        new,
        cache.array,
        LONG,
        TABLE,
        jnp.arange(ROWS + 1, dtype=jnp.int32),
        jnp.full(3, ROWS, jnp.int32),
        sm_scale=0.3,
        mode=mode,
    )
    assert not out[0].any()
    np.testing.assert_array_equal(after[:4], cache.array[:4])
    written = cache.with_array(after).layer(0)
    expected = ops.attention(q, written, LONGER["decoding"], scale=0.3)
    assert_close(out, expected, reduction=64)


FOUR = jnp.full(ROWS, 4, jnp.int32)
FULL = {
    "last": ops.PageView(TABLE, FOUR, FOUR - 1),
    "packed": ops.PageView.packed(TABLE, FOUR, FOUR - 1),
    "decoding": ops.PageView.decoding(TABLE, FOUR),
}


@pytest.mark.parametrize("implementation", ["chosen", "definition"])
@pytest.mark.parametrize("rows", FULL)
def test_what_has_left_a_window_may_be_nan(rows: str, implementation: str):
    """By the kernels, the definitions and their derivatives."""
    q, window = normal(ROWS, HEADS, HEAD_DIM), 2

    def loss(q: jax.Array, array: jax.Array) -> Any:
        kv = ops.KVCache.page_major(array).layer(0)
        out = ops.attention(q, kv, FULL[rows], scale=0.3, window=window)
        state = ops.attention_states(q, kv, FULL[rows], scale=0.3, window=window)
        return (out + state.output).sum() + state.log_sum.sum(), (out, state)

    found = jax.grad(loss, argnums=(0, 1), has_aux=True)
    array = CACHES["page_major"].array
    expected = found(q, array)
    with contextlib.ExitStack() as stack:
        if implementation == "definition":
            for op in (DECODE, PREFILL, STATES):
                stack.enter_context(op.using(REFERENCE))
        actual = found(q, array.at[:, :, :, : PAGE_SIZE - window].set(jnp.nan))
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for one, other in leaves:
        assert_close(one, other, reduction=64)


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**70])
def test_a_window_longer_than_any_row_is_none(window: int):
    q, view = normal(ROWS, HEADS, HEAD_DIM), ops.PageView.decoding(TABLE, LENGTHS)

    def total(q: jax.Array, *, window: int | None) -> jax.Array:
        return ops.attention(q, KV, view, scale=1.0, window=window).sum()

    found, wanted = (
        (
            jax.grad(functools.partial(total, window=one))(q),
            ops.attention_states(q, KV, view, scale=1.0, window=one).output,
        )
        for one in (window, None)
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_states_are_not_batch_invariant_by_definition():
    q, view = normal(ROWS, HEADS, HEAD_DIM), ops.PageView.decoding(TABLE, LENGTHS)
    with (
        ops.batch_invariant(),
        pytest.raises(Unsupported, match="attention_states has no batch-invariant"),
    ):
        ops.attention_states(q, KV, view, scale=1.0)


@pytest.mark.parametrize("number", [jnp.float32(0.25), np.float32(0.25), 1])
def test_numbers_that_a_traced_function_holds_are_numbers(number: Any):
    x, ones = normal(ROWS, HEAD_DIM), jnp.ones(HEAD_DIM)

    def norm(x: jax.Array, *, offset: Any) -> jax.Array:
        return ops.rms_norm(x, ones, scale_offset=offset)

    found = jax.jit(functools.partial(norm, offset=number))(x)
    assert_close(found, norm(x, offset=float(number)), reduction=8)


@pytest.mark.parametrize("number", [np.float16(-1), jnp.bfloat16(3), np.int8(-128)])
def test_numbers_of_narrow_types_are_finite(number: Any):
    assert is_float32(number)


@pytest.mark.parametrize(
    "number", [np.float16(np.inf), jnp.bfloat16(jnp.inf), jnp.float16(jnp.nan), 10**400]
)
def test_numbers_that_are_not_finite_in_any_type_are_refused(number: Any):
    q, view = normal(ROWS, HEADS, HEAD_DIM), ops.PageView.decoding(TABLE, LENGTHS)
    for scale, soft_cap in ((number, None), (1.0, number)):
        with pytest.raises(ValueError, match="finite in float32"):
            ops.attention(q, KV, view, scale=scale, soft_cap=soft_cap)
