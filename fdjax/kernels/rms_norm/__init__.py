"""Root-mean-square normalisation over the last axis."""

from fdjax.kernels.op import Op
from fdjax.kernels.rms_norm import cuda, reference
from fdjax.notation import Array, Float

OP = Op("rms_norm", reference.rms_norm, {"cuda": cuda.IMPL})


def rms_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float,
    scale_offset: float = 0.0,
) -> Float[Array, "*T E"]:
    """Computes `x / sqrt(mean(x^2) + epsilon) * (scale + scale_offset)`.

    Args:
        x: activations; the last axis is normalised.
        scale: one factor an element.
        epsilon: added to the mean square.
        scale_offset: added to `scale` in float32 (Gemma stores `scale - 1`).

    Raises:
        ValueError: `scale` does not match x's last axis.
    """
    if scale.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: scale has shape {scale.shape}, x's last axis is {x.shape[-1]}"
        )
    return OP(x, scale, epsilon=epsilon, scale_offset=scale_offset)
