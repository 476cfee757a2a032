"""The definition of `layer_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.notation import Array, Float


def layer_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    bias: Float[Array, " E"],
    *,
    epsilon: float,
) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.layer_norm.layer_norm`."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(variance + epsilon)
    return (normal * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(
        x.dtype
    )
