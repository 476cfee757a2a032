"""Residual add and normalisation over the last axis, as one operation."""

from fdjax.kernels.add_norm import cpu, cuda, reference
from fdjax.kernels.add_norm.arguments import AddNorm, Normalised
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float

__all__ = ["OP", "AddNorm", "Normalised", "add_norm"]

OP = Op("add_norm", reference.add_norm, {"cuda": cuda.IMPL, "cpu": cpu.IMPL})


def add_norm(
    x: Float[Array, "*T E"],
    delta: Float[Array, "*T E"] | None,
    scale: Float[Array, " E"],
    bias: Float[Array, " E"] | None = None,
    *,
    epsilon: float,
    scale_offset: float = 0.0,
) -> Normalised:
    """Adds `delta` to the residual stream and normalises the sum.

    With `s = x + delta`, rounded to x's type, the normalised sum is

    * without a bias, RMSNorm: `s / sqrt(mean(s^2) + epsilon) * (scale + scale_offset)`;
    * with one, LayerNorm:
      `(s - mean(s)) / sqrt(variance(s) + epsilon) * (scale + scale_offset) + bias`.

    It is one of the nine operations into which Intel's solution fuses a layer. The
    arguments are the fields of `AddNorm`.

    Returns:
        The normalised sum, and the sum; `x` itself where `delta` is `None`.

    Raises:
        ValueError: `delta`, `scale` or `bias` does not match x.
    """
    wanted = {"delta": x.shape, "scale": x.shape[-1:], "bias": x.shape[-1:]}
    for name, array in (("delta", delta), ("scale", scale), ("bias", bias)):
        if array is not None and array.shape != wanted[name]:
            raise ValueError(
                f"add_norm: {name} has shape {array.shape}, x has {x.shape}; {name} "
                f"must have {wanted[name]}"
            )
    return OP(
        AddNorm(x, delta, scale, bias, epsilon=epsilon, scale_offset=scale_offset)
    )
