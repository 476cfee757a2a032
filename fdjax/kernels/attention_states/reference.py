"""The definition of `attention_states`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.attention_states.arguments import Attention
from fdjax.kernels.attention_states.states import AttentionState
from fdjax.kernels.attention_states.tree import ancestors, depths, sight
from fdjax.kernels.paged.definition import mixed, scores_at
from fdjax.notation import Array

# Queries at a time: each brings the pages of its whole sequence.
BLOCK_QUERIES = 16


def attention_states(call: Attention) -> AttentionState:
    """See `fdjax.kernels.attention_states.attention_states`.

    Every query is attended to as a row of its own.
    """
    num_queries, pages = call.q.shape[0], call.pages
    rows, slots = call.queries()
    firsts, starts = pages.first_tokens(num_queries), pages.first_positions
    tree, held = _tree(call), call.held()
    depth = depths(tree, slots - starts[rows])

    def one_query(query: tuple[Array, ...]) -> tuple[Array, Array]:
        q, row, slot, words = query
        k, v = call.kv.gather(pages.page_table[row][None])
        key = jnp.arange(k.shape[1], dtype=jnp.int32)
        new = key - starts[row]
        seen = ancestors(words, new)
        positions = jnp.where(
            new >= 0,
            starts[row] + depth.at[firsts[row] + new].get(mode="clip"),
            key,
        )
        sees = sight(slot, seen, positions, call.scores.window)
        own = held[row]
        if call.keys is not None:
            own &= (key >= call.keys.first[row]) & (key < call.keys.end[row])
        sees = sees._replace(seen=sees.seen & own)
        scores = scores_at(q[None, None], k, sees, own[None], call.scores)
        output, log_sum = mixed(scores, v, own[None], call.scores.sinks)
        return output[0, 0], log_sum[0, 0]

    operands = (call.q, rows, slots, tree)
    output, log_sum = lax.map(one_query, operands, batch_size=BLOCK_QUERIES)
    return AttentionState(output, log_sum)


def _tree(call: Attention) -> Array:
    """Every query's bits; without any, a token follows all new ones before it."""
    if call.tree is not None:
        return call.tree
    return jnp.full((call.q.shape[0], 1), ~jnp.uint32(0))
