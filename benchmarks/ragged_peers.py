"""Whose attention `benchmarks.ragged_attention` times, over the same rows."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import Case
from fdjax import ops
from fdjax.notation import Array

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16  # Llama-3-8B


@dataclasses.dataclass(frozen=True)
class Rows:
    """The same rows as every peer is given them.

    Attributes:
        q: `[B, Hq, D]`.
        kv: keys and values, `[P, Z, Hkv, 2, D]`.
        table: pages of each row, `[B, W]`, in no order.
        lengths: all alike.
    """

    q: Array
    kv: Array
    table: Array
    lengths: Array


def rows_of(case: Case, dtype: jax.typing.DTypeLike) -> Rows:
    """Noise, the same in every run."""
    width = -(-case.context // PAGE_SIZE)
    random = np.random.default_rng(1)
    query, page = jax.random.split(jax.random.key(case.batch + case.context))
    table = random.permutation(case.batch * width).reshape(case.batch, width)
    shape = (case.batch * width, PAGE_SIZE, KV_HEADS, 2, HEAD_DIM)
    return Rows(
        jax.random.normal(query, (case.batch, HEADS, HEAD_DIM), dtype),
        jax.random.normal(page, shape, dtype),
        jnp.asarray(table, jnp.int32),
        jnp.full(case.batch, case.context, jnp.int32),
    )


type Call = tuple[Callable[..., Array], Sequence[Any]]


def native(rows: Rows) -> Call:
    """Ours, over our own pages."""
    pages = jax.jit(lambda kv: kv.transpose(0, 3, 1, 2, 4)[:, None])(rows.kv)

    def attend(q: Array, pages: Array, table: Array, lengths: Array) -> Array:
        view = ops.PageView.decoding(table, lengths)
        kv = ops.KVCache.page_major(pages).layer(0)
        return ops.attention(q, kv, view, scale=HEAD_DIM**-0.5)

    return attend, (rows.q, pages, rows.table, rows.lengths)


def ragged(rows: Rows) -> Call:
    """Ours, over a cache of ragged paged attention v3."""
    dtype, count = rows.kv.dtype, len(rows.q)
    pack = 4 // dtype.itemsize
    cache = rows.kv.reshape(*rows.kv.shape[:2], -1, pack, HEAD_DIM)
    unused = jnp.zeros((count, KV_HEADS, HEAD_DIM), dtype)

    def attend(q: Array, cache: Array, table: Array, lengths: Array) -> Array:
        return ops.ragged_paged_attention(
            q,
            unused,
            unused,
            cache,
            lengths,
            table,
            jnp.arange(count + 1, dtype=jnp.int32),
            jnp.full(3, count, jnp.int32),
            sm_scale=HEAD_DIM**-0.5,
            update_kv_cache=False,
            mode="decode",
        )[0]

    return attend, (rows.q, cache, rows.table, rows.lengths)


def pallas(rows: Rows) -> Call:
    """JAX's own, which does not scale queries; in as many splits as divide pages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAX says: not for long
        from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    halves = jax.jit(lambda kv: tuple(jnp.moveaxis(kv, (3, 2), (0, 1))))(rows.kv)
    width = rows.table.shape[1]
    splits = max(n for n in (1, 2, 4, 8, 16) if width % n == 0)
    block = max(n for n in (1, 2, 4, 8) if width // splits % n == 0)

    def attend(q: Array, k: Array, v: Array, table: Array, lengths: Array) -> Array:
        return paged_attention(
            q * HEAD_DIM**-0.5,
            k,
            v,
            table,
            lengths,
            k_splits=splits,
            pages_per_compute_block=block,
            interpret=jax.default_backend() == "cpu",
        )

    return attend, (rows.q, *halves, rows.table, rows.lengths)


def cudnn(rows: Rows) -> Call:
    """cuDNN's, by way of JAX's private interface; for a GPU alone."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, paged_attention

    halves = jax.jit(lambda kv: tuple(jnp.moveaxis(kv, 3, 0)))(rows.kv)

    def attend(q: Array, k: Array, v: Array, table: Array, lengths: Array) -> Array:
        pages = table[:, None, :, None]
        return paged_attention(
            q[:, None],
            k,
            v,
            jnp.ones_like(lengths),
            lengths,
            pages,
            pages,
            scale=HEAD_DIM**-0.5,
            mask_type=MaskType.PADDING,
        )[:, 0]

    return attend, (rows.q, *halves, rows.table, rows.lengths)


def ejkernel(rows: Rows) -> Call:
    """ejkernel's, which always writes its tokens' keys, into a copy of the cache."""
    from ejkernel.kernels._cuda.ragged_page_attention_v3 import (  # pyright: ignore[reportMissingImports]  (installed where this runs)
        _cuda_impl,
    )

    dtype, count = rows.kv.dtype, len(rows.q)
    cache = rows.kv.reshape(*rows.kv.shape[:2], -1, 4 // dtype.itemsize, HEAD_DIM)
    last = rows.lengths - 1
    page = jnp.take_along_axis(rows.table, last[:, None] // PAGE_SIZE, axis=1)[:, 0]
    new = rows.kv[page, last % PAGE_SIZE]  # what is there already

    def attend(
        q: Array, cache: Array, new: Array, table: Array, lengths: Array
    ) -> Array:
        return _cuda_impl.ragged_page_attention_v3_cuda(
            q,
            new[:, :, 0],
            new[:, :, 1],
            cache,
            lengths,
            table.reshape(-1),
            jnp.arange(count + 1, dtype=jnp.int32),
            jnp.full(3, count, jnp.int32),
            None,
            softmax_scale=HEAD_DIM**-0.5,
            **dict.fromkeys(
                ("sliding_window", "logits_soft_cap", "q_scale", "k_scale", "v_scale")
            ),
        )[0]

    return attend, (rows.q, cache, new, rows.table, rows.lengths)


OURS = {"fdjax": native, "fdjax, rpa v3": ragged}
PEERS = {**OURS, "jax pallas": pallas, "cudnn": cudnn, "ejkernel": ejkernel}
