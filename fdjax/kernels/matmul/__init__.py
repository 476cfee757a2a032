"""The product of activations with a weight stored `[N, K]`, and its bias."""

import jax

from fdjax.kernels.matmul import reference
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float

OP = Op("matmul", reference.matmul)


def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None = None,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "M N"]:
    """Computes `x @ weight.T + bias`, accumulating in float32.

    Weights are stored `[N, K]`, as checkpoints hold them: a row is contiguous, so a
    flat product (small M) streams it once, coalesced (FlashDecoding++ section 4).

    Args:
        x: activations.
        weight: the weight.
        bias: added to every row.
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
    return OP(x, weight, bias, out_dtype=out_dtype or x.dtype)
