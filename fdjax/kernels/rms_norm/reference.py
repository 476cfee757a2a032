"""The definition of `rms_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.notation import Array, Float


def rms_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float,
    scale_offset: float,
) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.rms_norm.rms_norm`."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normal = wide * lax.rsqrt(mean_square + epsilon)
    return (normal * (scale.astype(jnp.float32) + scale_offset)).astype(x.dtype)
