"""The definition of `layer_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.layer_norm.arguments import LayerNorm
from fdjax.notation import Array, Float


def layer_norm(call: LayerNorm) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.layer_norm.layer_norm`."""
    wide = call.x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(variance + call.epsilon)
    scaled = normal * call.scale.astype(jnp.float32)
    return (scaled + call.bias.astype(jnp.float32)).astype(call.x.dtype)
