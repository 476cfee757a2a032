"""A: `matmul` on CUDA cores, for the smallest M."""

import jax

from fdjax.kernels.matmul import call
from fdjax.kernels.matmul.config import MAX_GEMV_M
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    out_dtype: jax.typing.DTypeLike,
) -> Float[Array, "M N"]:
    """See `fdjax.kernels.matmul.matmul`."""
    return call.product(
        x,
        weight,
        bias,
        residual,
        activation=None,
        out_dtype=out_dtype,
        config=call.GEMV,
    )


def refuse(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    out_dtype: jax.typing.DTypeLike,
) -> str | None:
    """Why A cannot serve this call, or `None`."""
    return call.refuse(x, weight, bias, residual, out_dtype=out_dtype, max_m=MAX_GEMV_M)


IMPL = Impl(run, refuse)
