"""The definition of `prefill_attention`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.paged import attend
from fdjax.kernels.prefill_attention.arguments import PrefillAttention
from fdjax.notation import Array, Float

# Queries at a time: each brings the pages of its whole sequence.
BLOCK_QUERIES = 16


def prefill_attention(call: PrefillAttention) -> Float[Array, "T Hq D"]:
    """See `fdjax.kernels.prefill_attention.prefill_attention`.

    Every query is attended to as a row of its own.
    """
    num_queries = call.q.shape[0]
    pages = call.pages
    rows, positions = pages.rows(num_queries), pages.positions(num_queries)

    def one_query(query: tuple[Array, Array, Array]) -> Array:
        q, row, position = query
        k, v = call.kv.gather(pages.page_table[row][None])
        length = pages.lengths[row][None]
        at = jnp.where(position < length, position, -1)  # padding sees no key
        return attend(q[None, None], k, v, at[None], length, call.scores)[0, 0]

    operands = (call.q, rows, positions)
    return lax.map(one_query, operands, batch_size=BLOCK_QUERIES)
