"""GEMMs in C++ on a CPU: the order of each element's sum is that of K alone.

XLA's dots are other loops for other M, and their sums have other bits.
"""

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.matmul import reference
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.handler import NAME
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def run(call: Matmul) -> Float[Array, "M N"]:
    """See `fdjax.kernels.matmul.matmul`."""
    shape = (call.x.shape[0], call.weight.shape[0])
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(shape, jnp.float32),
        vmap_method="sequential",
    )
    return reference.finished(handler(call.x, call.weight.values), call)


def refuse(call: Matmul) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    return ffi.refuse(NAME, platform="cpu") or _refuse_arguments(call)


def _refuse_arguments(call: Matmul) -> str | None:
    x, weight = call.x, call.weight
    if x.dtype not in DTYPES or weight.dtype != x.dtype:
        return (
            f"x is {x.dtype} and weight {weight.dtype}; it takes both float32, both "
            "bfloat16 or both float16"
        )
    if x.shape[1] == 0:
        return "K is 0; it takes 1 and more"
    return None


IMPL = Impl(run, refuse, batch_invariant=True, on_demand=True)
