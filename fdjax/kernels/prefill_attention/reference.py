"""The definition of `prefill_attention`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.paged import attend, gather_pages
from fdjax.kernels.prefill_attention.arguments import PrefillAttention
from fdjax.notation import Array, Float, Int32


def query_positions(
    lengths: Int32[Array, " B"], starts: Int32[Array, " B"] | None, *, num_queries: int
) -> Int32[Array, "B S"]:
    """Positions of the queries: `starts` (0 where `None`), then counting up."""
    offsets = jnp.arange(num_queries, dtype=jnp.int32)
    first = jnp.zeros_like(lengths) if starts is None else starts
    return first[:, None] + offsets


def prefill_attention(call: PrefillAttention) -> Float[Array, "B S Hq D"]:
    """See `fdjax.kernels.prefill_attention.prefill_attention`."""
    k, v = gather_pages(call.kv, call.page_table, layer=call.layer)
    lengths = call.lengths
    positions = query_positions(lengths, call.starts, num_queries=call.q.shape[1])
    return attend(call.q, k, v, positions, lengths, call.scores)
