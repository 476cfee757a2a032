"""Whole numbers of every type give what those of int32 give, and others are refused."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops

UNTYPED: Any = ops.PageView  # numpy's arrays are no `Array`
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 4, 2, 8, 16, 5100
RANDOM = np.random.default_rng(0)
# Of each type the first page: times 16 it is more than the type holds, but for uint32.
TYPES = {"int8": 100, "uint8": 240, "int16": 4000, "uint16": 5000, "uint32": 5000}
LENGTHS, COUNTS = np.array([50, 5, 8]), np.array([1, 5, 2])
STARTS = LENGTHS - COUNTS
FIRSTS = np.array([0, 1, 6, 8])


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


Q, K, V = normal(8, HEADS, HEAD_DIM), normal(8, KV_HEADS, HEAD_DIM), normal(8, 2, 8)
CACHE = normal(PAGES, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
KV = ops.KVCache.interleaved(CACHE).layer(0)


def table(dtype: str) -> np.ndarray:
    """Pages whose ids the type holds."""
    return TYPES[dtype] + np.arange(12).reshape(3, 4)


PAGE_TABLE, LEN32 = jnp.asarray(table("int8"), "int32"), jnp.asarray(LENGTHS, "int32")


def same(found: Any, expected: Any) -> None:
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, other in leaves:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def ragged(integers: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    width = 4 if "cu_kv_lens" in integers else None
    return ops.ragged_paged_attention(
        Q, K, V, CACHE, **integers, sm_scale=0.3, pages_per_row=width
    )


@pytest.mark.parametrize(
    "which", ["kv_lens", "page_indices", "cu_q_lens", "distribution", "cu_kv_lens", ""]
)
@pytest.mark.parametrize("dtype", TYPES)
def test_ragged_paged_attention(dtype: str, which: str):
    """One of its arguments, or all of them."""
    given = {
        "kv_lens": LENGTHS,
        "page_indices": table(dtype),
        "cu_q_lens": FIRSTS,
        "distribution": np.array([1, 1, 3]),
    }
    if which == "cu_kv_lens":
        given["page_indices"] = given["page_indices"].reshape(-1)
        given[which] = np.array([0, 64, 80, 96])
    types = {name: dtype if which in (name, "") else "int32" for name in given}
    arrays = {name: jnp.asarray(given[name], types[name]) for name in given}
    narrow = {name: jnp.asarray(array, jnp.int32) for name, array in given.items()}
    same(ragged(arrays), ragged(narrow))


def views(dtype: str, page_ids: np.ndarray) -> dict[str, ops.PageView]:
    """What each way of making one makes."""
    pages, lengths, starts, firsts, begins = (
        jnp.asarray(numbers, dtype)
        for numbers in (page_ids, LENGTHS, STARTS, FIRSTS[:-1], np.arange(4) * 4)
    )
    packed = ops.PageView.table_of(pages.reshape(-1), begins, width=4)
    return {
        "whole": ops.PageView(pages, lengths, starts, firsts),
        "packed": ops.PageView.packed(pages, lengths, starts),
        "table_of": ops.PageView.packed(packed, lengths, starts),
        "decoding": ops.PageView.decoding(pages, lengths),
        "empty rows": ops.PageView.decoding(pages, lengths - lengths),
    }


@pytest.mark.parametrize("which", views("int32", table("int8")))
@pytest.mark.parametrize("dtype", TYPES)
def test_views(dtype: str, which: str):
    page_ids = table(dtype)
    view, expected = (views(one, page_ids)[which] for one in (dtype, "int32"))
    tokens = 3 if view.decodes else 8
    same(view, expected)
    for method in ("positions", "rows", "first_tokens", "last_tokens"):
        same(getattr(view, method)(tokens), getattr(expected, method)(tokens))
    slots = expected.slots(tokens, page_size=PAGE_SIZE)
    same(view.slots(tokens, page_size=PAGE_SIZE), slots)
    attended = [ops.attention(Q[:tokens], KV, one, scale=0.3) for one in views_of(view)]
    attended.append(ops.attention(Q[:tokens], KV, expected, scale=0.3))
    for out in attended:
        same(out, attended[-1])


def views_of(view: ops.PageView) -> list[ops.PageView]:
    """A view, and one of other types that its constructor has not seen."""
    return [view, jax.tree.map(lambda leaf: leaf.astype(jnp.int16), view)]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_layer_of_a_cache(dtype: str):
    pages = [jnp.asarray(table(dtype), one) for one in (dtype, "int32")]
    same(KV.gather(pages[0]), KV.gather(pages[1]))
    same(KV.cache.present(pages[0]), KV.cache.present(pages[1]))
    slots = [jnp.arange(120, 128).astype(one) for one in (dtype, "int32")]
    same(KV.write(slots[0], K, V), KV.write(slots[1], K, V))
    same(KV.gather_slots(slots[0][None]), KV.gather_slots(slots[1][None]))


@pytest.mark.parametrize("dtype", TYPES)
def test_other_operations(dtype: str):
    def found(dtype: str) -> Any:
        numbers = jnp.arange(8).astype(dtype)
        frequencies = 1 / 100.0 ** (jnp.arange(4) / 4)
        qkv = jnp.concatenate([Q, K, V], axis=1)
        keys, ones = jnp.zeros((4, 2), jnp.uint32), jnp.ones(4)
        pages = ops.PageView.decoding(PAGE_TABLE, LEN32)
        ends = ops.KeyRange(numbers[:3], numbers[5:])
        return (
            ops.rope_and_write(qkv, KV, numbers, numbers, frequencies),
            ops.sample(normal_once, keys, numbers[:4], ones, numbers[2:6]),
            ops.attention_states(Q[:3], KV, pages, scale=0.3, keys=ends),
        )

    normal_once = jnp.asarray(np.random.default_rng(1).normal(size=(4, 50)), "float32")
    same(found(dtype), found("int32"))


def test_what_int32_does_not_hold_is_no_page():
    """Not page 3: what is left of 2**32 + 3 in 32 bits."""
    pages = np.array([[2**32 + 3, -(2**32) + 3]])
    view = UNTYPED.decoding(pages, np.array([20]))
    assert np.asarray(view.page_table).tolist() == [[2**31 - 1, -(2**31)]]
    assert not KV.cache.present(view.page_table).any()
    unsigned = ops.PageView.decoding(jnp.asarray([[2**31 + 3]], "uint32"), LEN32[:1])
    assert np.asarray(unsigned.page_table).tolist() == [[2**31 - 1]]


HALVES = jnp.ones(3)
REFUSED: dict[str, Callable[[], Any]] = {
    "PageView: page_table is float32; cast": lambda: ops.PageView(
        PAGE_TABLE.astype(jnp.float32), LEN32
    ),
    "PageView: lengths is float32; cast": lambda: ops.PageView(PAGE_TABLE, HALVES),
    "PageView: lengths is bool; cast": lambda: ops.PageView.decoding(
        PAGE_TABLE, HALVES > 0
    ),
    "PageView: starts is float32; cast": lambda: ops.PageView.packed(
        PAGE_TABLE, LEN32, HALVES
    ),
    "PageView: firsts is float32; cast": lambda: ops.PageView(
        PAGE_TABLE, LEN32, LEN32, HALVES
    ),
    "PageView: offsets is float32; cast": lambda: ops.PageView.table_of(
        LEN32, HALVES, width=2
    ),
    "PageView: indices is float32; cast": lambda: ops.PageView.table_of(
        HALVES, LEN32, width=2
    ),
    "KVLayer: slots is float32; cast": lambda: KV.write(HALVES, K[:3], V[:3]),
    "KVLayer: page_table is float32; cast": lambda: KV.gather(HALVES[None]),
    "rope_and_write: slots is float32; cast": lambda: ops.rope_and_write(
        jnp.concatenate([Q, K, V], axis=1)[:3], KV, LEN32, HALVES, HALVES
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_numbers(message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        REFUSED[message]()


def test_no_array():
    with pytest.raises(TypeError, match=r"^PageView: lengths is a list; give an a"):
        UNTYPED(PAGE_TABLE, [50, 5, 8])


def test_words_of_a_tree():
    """Of 64 bits they are two words each, as the message says."""
    pages = ops.PageView.packed(
        *(jnp.asarray(rows, "int32") for rows in (table("int8"), LENGTHS, STARTS))
    )

    def found(tree: Any) -> ops.AttentionState:
        return ops.attention_states(Q, KV, pages, scale=0.3, tree=tree)

    words = np.array([[1], [3], [5], [11], [17], [33], [1], [3]], np.uint8)
    expected = found(jnp.asarray(words, "uint32"))
    same(found(words), expected)
    wide = (words.astype(np.uint64) | 7 << 40).astype(np.uint64)
    same(found(wide.view(np.uint32)), expected)
    with pytest.raises(ValueError, match="attention_states: tree is uint64; a word"):
        found(wide)
    with jax.enable_x64(True), pytest.raises(ValueError, match="tree is uint64"):
        found(jnp.asarray(wide))
