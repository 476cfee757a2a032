"""`prefill_attention` a block of queries at a time, so that scores stay small."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.op import Impl
from fdjax.kernels.paged import attend, gather_pages
from fdjax.kernels.prefill_attention.arguments import PrefillAttention
from fdjax.kernels.prefill_attention.reference import query_positions
from fdjax.notation import Array, Float

# Scores of one block: 256 queries x 32 heads x 32,768 keys in float32 are 1 GiB.
BLOCK_QUERIES = 256


def run(call: PrefillAttention) -> Float[Array, "B S Hq D"]:
    """The reference's mathematics, `BLOCK_QUERIES` queries of a row at a time."""
    lengths = call.lengths
    rows, num_queries, num_heads, head_dim = call.q.shape
    num_blocks = -(-num_queries // BLOCK_QUERIES)
    padding = num_blocks * BLOCK_QUERIES - num_queries
    positions = query_positions(lengths, call.starts, num_queries=num_queries + padding)
    q = jnp.pad(call.q, ((0, 0), (0, padding), (0, 0), (0, 0)))
    blocks = (rows * num_blocks, 1, BLOCK_QUERIES)
    row_of_block = jnp.repeat(jnp.arange(rows), num_blocks)

    def one_block(block: tuple[Array, Array, Array]) -> Array:
        queries, at, row = block
        k, v = gather_pages(call.kv, call.page_table[row][None], layer=call.layer)
        return attend(queries, k, v, at, lengths[row][None], call.scores)

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


def refuse(call: PrefillAttention) -> str | None:
    """Why blocks cannot serve: too few queries to make two of them."""
    num_queries = call.q.shape[1]
    if num_queries <= BLOCK_QUERIES:
        return f"{num_queries} queries a row make no second block of {BLOCK_QUERIES}"
    return None


IMPL = Impl(run, refuse)
