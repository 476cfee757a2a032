"""The definition of `embedding`."""

import jax.numpy as jnp

from fdjax.kernels.embedding.arguments import Embedding
from fdjax.notation import Array, Float, Int32


def embedding(call: Embedding) -> Float[Array, "T E"]:
    """See `fdjax.kernels.embedding.embedding`."""
    x = _rows(call.table.values, call.tokens)
    if call.scale is not None:
        x = x * jnp.asarray(call.scale, x.dtype)
    if call.position_table is not None:
        x = x + _rows(call.position_table, call.positions)
    return x


def _rows(
    table: Float[Array, "V E"], ids: Int32[Array, " T"] | None
) -> Float[Array, "T E"]:
    return table.at[ids].get(mode="clip", wrap_negative_indices=False)
