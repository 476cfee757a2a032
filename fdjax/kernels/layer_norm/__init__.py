"""Layer normalisation over the last axis."""

from fdjax.kernels.layer_norm import reference
from fdjax.kernels.layer_norm.arguments import LayerNorm
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float

__all__ = ["OP", "LayerNorm", "layer_norm"]

OP = Op("layer_norm", reference.layer_norm)


def layer_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    bias: Float[Array, " E"],
    *,
    epsilon: float,
) -> Float[Array, "*T E"]:
    """Computes `(x - mean) / sqrt(variance + epsilon) * scale + bias`.

    The arguments are the fields of `LayerNorm`.

    Raises:
        ValueError: `scale` or `bias` does not match x's last axis.
    """
    for name, parameter in (("scale", scale), ("bias", bias)):
        if parameter.shape != x.shape[-1:]:
            raise ValueError(
                f"layer_norm: {name} has shape {parameter.shape}, x's last axis is "
                f"{x.shape[-1]}"
            )
    return OP(LayerNorm(x, scale, bias, epsilon=epsilon))
