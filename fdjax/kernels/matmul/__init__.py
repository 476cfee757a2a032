"""The product of activations with a weight stored `[N, K]`, its bias and a residual."""

from collections.abc import Sequence

import jax

from fdjax.kernels.matmul import config, flat, gemv, reference
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float


def _order(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    out_dtype: jax.typing.DTypeLike,
) -> Sequence[str]:
    """The implementations by the inflection points of `[N, K]`."""
    del bias, residual, out_dtype
    return config.choose(x.shape[0], *weight.shape)


OP = Op(
    "matmul",
    reference.matmul,
    {"gemv": gemv.IMPL, "flat": flat.IMPL},
    order=_order,
)


def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None = None,
    residual: Float[Array, "M N"] | None = None,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "M N"]:
    """Computes `x @ weight.T + bias + residual`, accumulating in float32.

    Weights are stored `[N, K]`, as checkpoints hold them: a row is contiguous, so a
    flat product (small M) streams it once, coalesced (FlashDecoding++ section 4).

    Args:
        x: activations.
        weight: the weight.
        bias: added to every row.
        residual: added to the product, before it is rounded.
        out_dtype: type of the result; that of `x` by default.

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
            f"matmul: residual has shape {residual.shape}, the product {shape}"
        )
    return OP(x, weight, bias, residual, out_dtype=out_dtype or x.dtype)
