"""The definition of `gated_activation`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.activations import activation as named_activation
from fdjax.kernels.gated_activation.arguments import GatedActivation
from fdjax.notation import Array, Float


def gated_activation(call: GatedActivation) -> Float[Array, "T F"]:
    """See `fdjax.kernels.gated_activation.gated_activation`."""
    gate, up = jnp.split(call.gate_up.astype(jnp.float32), 2, axis=-1)
    activated = named_activation(call.activation)(gate)
    return (activated * up).astype(call.gate_up.dtype)
