"""The gate of a feed-forward part: SwiGLU, and GeGLU in Gemma."""

from fdjax.kernels.gated_activation import reference
from fdjax.kernels.gated_activation.arguments import GatedActivation
from fdjax.kernels.op import Op
from fdjax.notation import Array, Float

__all__ = ["OP", "GatedActivation", "gated_activation"]

OP = Op("gated_activation", reference.gated_activation, batch_invariant=True)


def gated_activation(
    gate_up: Float[Array, "T F2"], *, activation: str
) -> Float[Array, "T F"]:
    """Computes `activation(gate) * up` of a fused gate and up linear map.

    The arguments are the fields of `GatedActivation`.

    Raises:
        ValueError: the last axis is odd, or the activation unknown.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(
            f"gated_activation: the last axis is {gate_up.shape[-1]}, not twice F"
        )
    return OP(GatedActivation(gate_up, activation=activation))
