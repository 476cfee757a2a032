"""GEMMs by cuBLASLt, called by the handler: no operand or memory of XLA's for them.

XLA times candidates for a GEMM while it compiles, on operands and results of its
own: for the head of a large vocabulary more than a gigabyte that nothing else may use.
"""

import jax.numpy as jnp

from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.params import LibraryConfig
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

MAX_M = 2**31 - 1


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`."""
    return handler.run(call, LibraryConfig(candidate=0))


def refuse(call: Matmul) -> str | None:
    """Why the library cannot serve this call, or `None`."""
    if call.gated:
        return "it has no gate"
    adds = call.bias is not None or call.residual is not None
    if adds and jnp.dtype(call.out_dtype) != call.x.dtype:
        return f"what is added is {call.x.dtype}, the result {call.out_dtype}"
    return handler.refuse(call, max_m=MAX_M)


IMPL = Impl(run, refuse)
