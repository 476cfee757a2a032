"""The definition of `prefill_attention`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.decode_attention.reference import recomputed_rows
from fdjax.kernels.paged import attend, highest_of, scores_of
from fdjax.kernels.prefill_attention.arguments import Attended, PrefillAttention
from fdjax.notation import Array

# Queries at a time: each brings the pages of its whole sequence.
BLOCK_QUERIES = 16


def prefill_attention(call: PrefillAttention) -> Attended:
    """See `fdjax.kernels.prefill_attention.prefill_attention`.

    Every query is attended to as a row of its own. The scheme changes no mathematics,
    so only the count depends on `unified`.
    """
    pages, held = call.pages, call.held()
    rows, positions = call.queries()

    def one_query(query: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, row, position = query
        k, v = call.kv.gather(pages.page_table[row][None])
        operands = q[None, None], k, position[None, None], held[row][None], call.scores
        out = attend(*operands[:2], v, *operands[2:])[0, 0]
        if call.unified is None:
            return out, jnp.int32(0)
        highest = highest_of(scores_of(*operands), call.scores.sinks)[..., 0]
        count = jnp.sum(recomputed_rows(highest, call.unified))
        return out, jnp.where(position >= 0, count, 0)

    operands = (call.q, rows, positions)
    out, counts = lax.map(one_query, operands, batch_size=BLOCK_QUERIES)
    return out, jnp.zeros(pages.num_rows, jnp.int32).at[rows].add(counts)
