"""The definition of `add_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.add_norm.arguments import AddNorm, Normalised
from fdjax.notation import Array, Float


def add_norm(call: AddNorm) -> Normalised:
    """See `fdjax.kernels.add_norm.add_norm`."""
    x = call.x if call.delta is None else call.x + _delta(call, call.delta)
    normal = x.astype(jnp.float32)
    if call.bias is not None:
        normal = normal - jnp.mean(normal, axis=-1, keepdims=True)
    mean_square = jnp.mean(normal * normal, axis=-1, keepdims=True)
    normal = normal * lax.rsqrt(mean_square + call.epsilon)
    normal = normal * (call.scale.astype(jnp.float32) + call.scale_offset)
    if call.bias is not None:
        normal = normal + call.bias.astype(jnp.float32)
    return Normalised(normal.astype(x.dtype), x)


def _delta(call: AddNorm, delta: Float[Array, "*T E"]) -> Float[Array, "*T E"]:
    if call.delta_scale is None:
        return delta
    wide = delta.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normal = wide * lax.rsqrt(mean_square + call.epsilon)
    normal = normal * (call.delta_scale.astype(jnp.float32) + call.scale_offset)
    return normal.astype(delta.dtype)
