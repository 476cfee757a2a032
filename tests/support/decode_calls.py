"""Calls of `decode_attention` for its tests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import struct
from fdjax.kernels.decode_attention import DecodeAttention, UnifiedMax
from fdjax.kernels.paged import ScoreSpec

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
    return DecodeAttention(
        struct(rows, 2 * group, head_dim, dtype=dtype),
        struct(pages, 1, 2, page_size, 2, head_dim, dtype=dtype),
        struct(rows, width, dtype=integer),
        struct(rows, dtype=integer),
        ScoreSpec(None, scale=1.0, soft_cap=None, window=None),
        layer=0,
        unified=None,
    )


def poisoned(call: DecodeAttention) -> DecodeAttention:
    """The same call, NaN in every slot that holds no token of a row."""
    kv, page_size = call.kv, call.kv.shape[3]
    held = np.zeros((kv.shape[0], page_size), bool)
    rows = zip(np.asarray(call.page_table), np.asarray(call.lengths), strict=True)
    for pages, length in rows:
        for place in range(-(-int(length) // page_size)):
            held[pages[place], : int(length) - place * page_size] = True
    nan = jnp.asarray(jnp.nan, kv.dtype)
    kv = jnp.where(jnp.asarray(held)[:, None, None, :, None, None], kv, nan)
    return dataclasses.replace(call, kv=kv)


def shuffled_table(call: DecodeAttention, *, seed: int = 0) -> jax.Array:
    """A page table whose pages are all there, in random order."""
    pages = np.random.default_rng(seed).permutation(call.kv.shape[0])
    shape = call.page_table.shape
    return jnp.asarray(pages[: call.page_table.size].reshape(shape), jnp.int32)
