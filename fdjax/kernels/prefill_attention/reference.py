"""The definition of `prefill_attention`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.paged import attend, gather_pages
from fdjax.notation import Array, Float, Int32


def query_positions(
    lengths: Int32[Array, " B"], starts: Int32[Array, " B"] | None, *, num_queries: int
) -> Int32[Array, "B S"]:
    """Positions of the queries: `starts` (0 where `None`), then counting up."""
    offsets = jnp.arange(num_queries, dtype=jnp.int32)
    first = jnp.zeros_like(lengths) if starts is None else starts
    return first[:, None] + offsets


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
    """See `fdjax.kernels.prefill_attention.prefill_attention`."""
    k, v = gather_pages(kv, page_table, layer=layer)
    return attend(
        q,
        k,
        v,
        query_positions(lengths, starts, num_queries=q.shape[1]),
        lengths,
        slopes,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
    )
