"""The definition of `rms_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.rms_norm.arguments import RmsNorm
from fdjax.notation import Array, Float


def rms_norm(call: RmsNorm) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.rms_norm.rms_norm`."""
    x, scale = call.x, call.scale
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normal = wide * lax.rsqrt(mean_square + call.epsilon)
    return (normal * (scale.astype(jnp.float32) + call.scale_offset)).astype(x.dtype)
