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
    delta_scale: Float[Array, " E"] | None = None,
) -> Normalised:
    """Adds `delta` to the residual stream and normalises the sum.

    With `s = x + delta`, rounded to x's type, the normalised sum is

    * without a bias, RMSNorm: `s / sqrt(mean(s^2) + epsilon) * (scale + scale_offset)`;
    * with one, LayerNorm:
      `(s - mean(s)) / sqrt(variance(s) + epsilon) * (scale + scale_offset) + bias`.

    With `delta_scale`, `delta` is RMS-normalised first, with the same `epsilon` and
    `scale_offset`, and rounded to its type.

    It is one of the nine operations into which Intel's solution fuses a layer. The
    arguments are the fields of `AddNorm`.

    Returns:
        The normalised sum, and the sum; `x` itself where `delta` is `None`.

    Raises:
        ValueError: `delta`, `scale`, `bias` or `delta_scale` does not match x, or there
            is a `delta_scale` without a `delta`.
    """
    call = AddNorm(x, delta, scale, bias, epsilon, scale_offset, delta_scale)
    size = x.shape[-1:]
    wanted = {"delta": x.shape, "scale": size, "bias": size, "delta_scale": size}
    for name, shape in wanted.items():
        array = getattr(call, name)
        if array is not None and array.shape != shape:
            raise ValueError(
                f"add_norm: {name} has shape {array.shape}, x has {x.shape}; {name} "
                f"must have {shape}"
            )
    if delta is None and delta_scale is not None:
        raise ValueError("add_norm: there is a delta_scale, and no delta; leave it out")
    return OP(call)
