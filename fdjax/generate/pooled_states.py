"""Hidden states of prompts, added up by prompt."""

import jax
import jax.numpy as jnp

from fdjax.kernels.paged import KVCache
from fdjax.layers import packed_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class PooledStates:
    """Of neighbouring tokens of some prompts.

    Attributes:
        sums: of the tokens' hidden states.
        last: that of the last of them.
    """

    sums: Float[Array, "A E"]
    last: Float[Array, "A E"]


def pool_tokens(
    model: Decoder,
    kv: KVCache,
    tokens: Int32[Array, " T"],
    lengths: Int32[Array, " A"],
    page_table: Int32[Array, "A W"],
    starts: Int32[Array, " A"],
) -> tuple[PooledStates, KVCache]:
    """Runs prompts, or parts of them, that follow one another without padding.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        tokens: see `fdjax.generate.steps.extend`, as for the next three.
        lengths: tokens of each row in the KV array after this.
        page_table: pages of each row in order.
        starts: tokens of each row that the KV array holds already.

    Returns:
        What each row's new tokens add up to, in float32, of no meaning for a row
        without any; and the KV array with their keys and values.
    """
    batch = packed_batch(tokens, lengths, page_table, starts, page_size=kv.page_size)
    hidden, kv, _ = model(kv, batch)
    states, count, pages = hidden.astype(jnp.float32), tokens.shape[0], batch.pages
    is_padding = jnp.arange(count) >= jnp.sum(lengths - starts)
    rows = jnp.where(is_padding, pages.num_rows, pages.rows(count))
    sums = jax.ops.segment_sum(states, rows, num_segments=pages.num_rows)
    return PooledStates(sums, states[pages.last_tokens(count)]), kv
