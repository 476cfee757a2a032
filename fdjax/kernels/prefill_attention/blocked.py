"""`prefill_attention` a block of queries at a time, so that scores stay small."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.paged import attend, gather_pages
from fdjax.kernels.prefill_attention.reference import query_positions
from fdjax.notation import Array, Float, Int32

# Scores of one block: 256 queries x 32 heads x 32,768 keys in float32 are 1 GiB.
BLOCK_QUERIES = 256


def refuse(
    q: Array,
    kv: Array,
    page_table: Array,
    lengths: Array,
    starts: Array | None,
    slopes: Array | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> str | None:
    """Why blocks cannot serve: too few queries to make two of them."""
    if q.shape[1] <= BLOCK_QUERIES:
        return f"{q.shape[1]} queries a row make no second block of {BLOCK_QUERIES}"
    return None


def prefill_attention(
    q: Float[Array, "B S Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"] | None,
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> Float[Array, "B S Hq D"]:
    """The reference's mathematics, `BLOCK_QUERIES` queries of a row at a time."""
    rows, num_queries, num_heads, head_dim = q.shape
    num_blocks = -(-num_queries // BLOCK_QUERIES)
    padding = num_blocks * BLOCK_QUERIES - num_queries
    positions = query_positions(lengths, starts, num_queries=num_queries + padding)
    q = jnp.pad(q, ((0, 0), (0, padding), (0, 0), (0, 0)))
    blocks = (rows * num_blocks, 1, BLOCK_QUERIES)
    row_of_block = jnp.repeat(jnp.arange(rows), num_blocks)

    def one_block(block: tuple[Array, Array, Array]) -> Array:
        queries, at, row = block
        k, v = gather_pages(kv, page_table[row][None], layer=layer)
        return attend(
            queries,
            k,
            v,
            at,
            lengths[row][None],
            slopes,
            scale=scale,
            soft_cap=soft_cap,
            window=window,
        )

    out = lax.map(
        one_block,
        (
            q.reshape(*blocks, num_heads, head_dim),
            positions.reshape(blocks),
            row_of_block,
        ),
    )
    out = out.reshape(rows, num_blocks * BLOCK_QUERIES, num_heads, head_dim)
    return out[:, :num_queries]
