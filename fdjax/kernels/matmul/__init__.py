"""A linear map with a weight stored `[N, K]`, its bias and a residual."""

import jax

from fdjax.kernels.matmul import (
    cpu,
    flat,
    gemm,
    gemv,
    handler,
    library,
    persistent,
    reference,
)
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.op import Op
from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float

__all__ = ["OP", "Matmul", "matmul"]

OP = Op(
    "matmul",
    reference.matmul,
    {
        "gemv": gemv.IMPL,
        "flat": flat.IMPL,
        "gemm": gemm.IMPL,
        "persistent": persistent.IMPL,
        "library": library.IMPL,
        "cpu": cpu.IMPL,
    },
    order=handler.order,
    source=handler.source,
)


def matmul(
    x: Float[Array, "M K"],
    weight: Weight,
    bias: Float[Array, " N"] | None = None,
    residual: Float[Array, "M N"] | None = None,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "M N"]:
    """Computes `x @ weight.T + bias + residual`, accumulating in float32.

    Weights are `[N, K]`, as checkpoints hold them: a row is contiguous, so a
    flat GEMM (small M) streams it once, coalesced (FlashDecoding++ section 4).

    The arguments are fields of `Matmul`; `out_dtype` is that of `x` by default.

    Raises:
        ValueError: shapes do not fit together.
    """
    if x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"matmul: x has {x.shape[1]} columns, weight {weight.shape[1]}; both are K"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"matmul: bias has shape {bias.shape}, weight {weight.shape[0]} rows"
        )
    shape = (x.shape[0], weight.shape[0])
    if residual is not None and residual.shape != shape:
        raise ValueError(
            f"matmul: residual has shape {residual.shape}, the result {shape}"
        )
    out_dtype = out_dtype or x.dtype
    return OP(Matmul(x, weight, bias, residual, activation=None, out_dtype=out_dtype))
