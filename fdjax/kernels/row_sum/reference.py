"""The definition of `row_sum`."""

import jax.numpy as jnp

from fdjax.kernels.row_sum.arguments import RowSum
from fdjax.notation import Array, Float


def row_sum(call: RowSum) -> Float[Array, "*T 1"]:
    """See `fdjax.kernels.row_sum.row_sum`."""
    return jnp.sum(call.x, axis=-1, keepdims=True)
