"""What decode attention's call in CUDA takes where rows share prefixes."""

import jax
import jax.numpy as jnp

from fdjax.kernels.paged import KVCache, PageView, SharedPrefixes
from fdjax.kernels.prefill_plan.tiles import TILE_ROWS
from fdjax.notation import Array, Int32

NAME = "shared_prefix"
# Tokens of the smallest pages that are read once; single ones have not been tried.
LEAST_SHARED_PAGE = 2


def own_pages(pages: PageView, prefixes: SharedPrefixes, *, page_size: int) -> PageView:
    """The view without prefixes: each row's pages from the first one of its own on."""
    table, lengths = _without(
        pages.page_table, pages.lengths, prefixes.tokens, page_size=page_size
    )
    return PageView.decoding(table, lengths)


# Functions of their own: traced once for all layers of a model.
@jax.jit(static_argnames="page_size")
def _without(
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    tokens: Int32[Array, " B"],
    *,
    page_size: int,
) -> tuple[Int32[Array, "B W"], Int32[Array, " B"]]:
    width = page_table.shape[1]
    at = jnp.arange(width, dtype=jnp.int32) + (tokens // page_size)[:, None]
    table = jnp.take_along_axis(page_table, jnp.minimum(at, width - 1), axis=1)
    return table, jnp.maximum(lengths - tokens, 0)


def prefix_operands(
    pages: PageView, prefixes: SharedPrefixes
) -> tuple[Int32[Array, "..."], ...]:
    """What the handler reads beside rows' own attention.

    Args:
        pages: of the rows, what they share being the leading ones.
        prefixes: what they share.
    """
    shared = prefixes.order, prefixes.work, prefixes.parts
    return pages.page_table, pages.lengths, *shared


def prefix_records(cache: KVCache, prefixes: SharedPrefixes) -> jax.ShapeDtypeStruct:
    """What pieces of prefixes leave."""
    shape = (prefixes.num_records, cache.num_kv_heads, TILE_ROWS, cache.head_dim + 2)
    return jax.ShapeDtypeStruct(shape, jnp.float32)
