"""The definition of `gated_matmul`: float32 inside, one rounding at the end."""

import jax.numpy as jnp

from fdjax.kernels.activations import activation as named_activation
from fdjax.kernels.matmul import reference
from fdjax.notation import Array, Float


def gated_matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    *,
    activation: str,
) -> Float[Array, "M F"]:
    """See `fdjax.kernels.gated_matmul.gated_matmul`."""
    product = reference.matmul(x, weight, bias, None, out_dtype=jnp.float32)
    gate, up = jnp.split(product, 2, axis=-1)
    return (named_activation(activation)(gate) * up).astype(x.dtype)
