"""The definition of `gated_activation`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.activations import activation as named_activation
from fdjax.notation import Array, Float


def gated_activation(
    gate_up: Float[Array, "T F2"], *, activation: str
) -> Float[Array, "T F"]:
    """See `fdjax.kernels.gated_activation.gated_activation`."""
    gate, up = jnp.split(gate_up.astype(jnp.float32), 2, axis=-1)
    return (named_activation(activation)(gate) * up).astype(gate_up.dtype)
