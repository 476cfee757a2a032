"""Root-mean-square normalisation over the last axis."""

from fdjax.kernels.op import Op
from fdjax.kernels.rms_norm import cuda, reference
from fdjax.kernels.rms_norm.arguments import RmsNorm
from fdjax.notation import Array, Float

__all__ = ["OP", "RmsNorm", "rms_norm"]

OP = Op("rms_norm", reference.rms_norm, {"cuda": cuda.IMPL})


def rms_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float,
    scale_offset: float = 0.0,
) -> Float[Array, "*T E"]:
    """Computes `x / sqrt(mean(x^2) + epsilon) * (scale + scale_offset)`.

    The arguments are the fields of `RmsNorm`.

    Raises:
        ValueError: `scale` does not match x's last axis.
    """
    if scale.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: scale has shape {scale.shape}, x's last axis is {x.shape[-1]}"
        )
    return OP(RmsNorm(x, scale, epsilon=epsilon, scale_offset=scale_offset))
