"""Sums as batch-invariant GEMMs with ones, on a CPU.

XLA's own sums over rows have one order below 4,096 elements in all, another above.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.kernels.matmul import Matmul, cpu
from fdjax.kernels.op import Impl
from fdjax.kernels.row_sum.arguments import RowSum
from fdjax.kernels.weight import Dense
from fdjax.notation import Array, Float


def run(call: RowSum) -> Float[Array, "*T 1"]:
    """See `fdjax.kernels.row_sum.row_sum`."""
    x = call.x
    rows = x.reshape(_shape(x))
    ones = jnp.ones((1, x.shape[-1]), x.dtype)
    return cpu.run(_matmul(rows, ones)).reshape(*x.shape[:-1], 1)


def refuse(call: RowSum) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    x = call.x
    rows = jax.ShapeDtypeStruct(_shape(x), x.dtype)
    ones = jax.ShapeDtypeStruct((1, x.shape[-1]), x.dtype)
    return cpu.refuse(_matmul(rows, ones))


def _shape(x: Array) -> tuple[int, int]:
    """Those of all rows of x, one after the other."""
    return math.prod(x.shape[:-1]), x.shape[-1]


def _matmul(rows: Any, ones: Any) -> Matmul:
    operands = rows, Dense(ones), None, None
    return Matmul(*operands, activation=None, out_dtype=jnp.float32)


IMPL = Impl(run, refuse, batch_invariant=True, on_demand=True)
