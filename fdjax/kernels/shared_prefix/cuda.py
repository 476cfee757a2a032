"""What queries find in prefixes that they share, in CUDA, called through XLA's FFI."""

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.paged import (
    PagedAttention,
    PageView,
    SharedPrefixes,
    attention_attributes,
    by_head,
    handlers_array,
)
from fdjax.kernels.prefill_plan.tiles import TILE_ROWS
from fdjax.notation import Array, Float, Int32

NAME = "shared_prefix"
# Tokens of the smallest pages that its kernels read.
LEAST_SHARED_PAGE = ffi.limit("prefill_attention", "min_page_size")


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


def add_prefixes(
    call: PagedAttention,
    prefixes: SharedPrefixes,
    own: Float[Array, "B Hq D"],
    about: Float[Array, "B Hq 2"],
) -> Float[Array, "B Hq D"]:
    """The result over all keys, from that over each row's own.

    Args:
        call: the operation, over all pages.
        prefixes: what its rows share.
        own: the result over `own_pages`; it is overwritten.
        about: what its weights are relative to, and their sums.
    """
    cache = call.kv.cache
    shape = (prefixes.num_records, cache.num_kv_heads, TILE_ROWS, cache.head_dim + 2)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(own.shape, own.dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        input_output_aliases={8: 0},
        vmap_method="sequential",
    )
    out, _ = handler(
        call.q,
        handlers_array(cache),
        call.pages.page_table,
        call.pages.lengths,
        by_head(None),
        prefixes.order,
        prefixes.work,
        prefixes.parts,
        own,
        about,
        attributes=ffi.attributes(attention_attributes(call)),
    )
    return out
