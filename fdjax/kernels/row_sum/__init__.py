"""The sum of each row, of which log-probabilities and top-p are made."""

import jax.numpy as jnp

from fdjax.kernels.op import Op
from fdjax.kernels.row_sum import cpu, reference
from fdjax.kernels.row_sum.arguments import RowSum
from fdjax.notation import Array, Float

__all__ = ["OP", "RowSum", "row_sum"]


OP = Op("row_sum", reference.row_sum, {"cpu": cpu.IMPL})


def row_sum(x: Float[Array, "*T E"]) -> Float[Array, "*T 1"]:
    """The sums over the last axis.

    Raises:
        ValueError: x is not float32: sums in 16 bits are of no use.
    """
    if x.dtype != jnp.float32:
        raise ValueError(f"row_sum: x is {x.dtype}; it must be float32")
    return OP(RowSum(x))
