"""Calls of `decode_attention` for its tests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import struct
from fdjax.kernels.decode_attention import DecodeAttention, UnifiedMax
from fdjax.kernels.paged import KVCache, PagedAttention, PageView, ScoreSpec

# Bounds that no score of normal numbers leaves.
WIDE = UnifiedMax(0.0, -40.0, 40.0)


def structs(
    *,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    head_dim: int = 128,
    page_size: int = 16,
    group: int = 4,
    rows: int = 2,
    width: int = 4,
    pages: int = 8,
    integer: jax.typing.DTypeLike = jnp.int32,
) -> DecodeAttention:
    """A plain call of two key/value heads, without data."""
    lengths = struct(rows, dtype=jnp.int32)
    pages_of = PageView(struct(rows, width, dtype=jnp.int32), lengths, starts=lengths)
    return DecodeAttention(
        struct(rows, 2 * group, head_dim, dtype=dtype),
        KVCache.page_major(
            struct(pages, 1, 2, page_size, 2, head_dim, dtype=dtype)
        ).layer(0),
        # Of other types, as `PageView` makes none.
        jax.tree.map(lambda leaf: struct(*leaf.shape, dtype=integer), pages_of),
        ScoreSpec(None, scale=1.0, soft_cap=None, window=None),
        unified=None,
    )


def poisoned(call: DecodeAttention) -> DecodeAttention:
    """The same call, NaN in every slot that holds no token of a row."""
    cache, page_size = call.kv.cache, call.kv.cache.page_size
    held = np.zeros((cache.num_pages, page_size), bool)
    table, lengths = call.pages.page_table, call.pages.lengths
    rows = zip(np.asarray(table), np.asarray(lengths), strict=True)
    for pages, length in rows:
        for place in range(-(-int(length) // page_size)):
            held[pages[place], : int(length) - place * page_size] = True
    nan = jnp.asarray(jnp.nan, cache.dtype)
    held = jnp.asarray(held)[:, None, None, :, None, None]
    return with_array(call, jnp.where(held, cache.array, nan))


def with_array[C: PagedAttention](call: C, array: jax.Array) -> C:
    """The same call over other keys and values."""
    layer = call.kv.cache.with_array(array).layer(call.kv.index)
    return dataclasses.replace(call, kv=layer)


def with_pages(
    call: DecodeAttention,
    page_table: jax.Array | None = None,
    lengths: jax.Array | None = None,
) -> DecodeAttention:
    """The same call, its rows with other pages or of other lengths."""
    pages = PageView.decoding(
        call.pages.page_table if page_table is None else page_table,
        call.pages.lengths if lengths is None else lengths,
    )
    return dataclasses.replace(call, pages=pages)


def shuffled_table(call: DecodeAttention, *, seed: int = 0) -> jax.Array:
    """A page table whose pages are all there, in random order."""
    pages = np.random.default_rng(seed).permutation(call.kv.cache.num_pages)
    table = call.pages.page_table
    shape = table.shape
    return jnp.asarray(pages[: table.size].reshape(shape), jnp.int32)
