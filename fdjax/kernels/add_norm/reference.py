"""The definition of `add_norm`, in float32."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.add_norm.arguments import AddNorm, Normalised
from fdjax.notation import Array, Float


def add_norm(call: AddNorm) -> Normalised:
    """See `fdjax.kernels.add_norm.add_norm`."""
    x = call.x if call.delta is None else call.x + _delta(call, call.delta)
    wide = x.astype(jnp.float32)
    if call.bias is not None:
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    normal = _scaled(call, wide, call.scale)
    if call.bias is not None:
        normal = normal + call.bias.astype(jnp.float32)
    return Normalised(normal.astype(x.dtype), x)


def _delta(call: AddNorm, delta: Float[Array, "*T E"]) -> Float[Array, "*T E"]:
    if call.delta_scale is None:
        return delta
    normal = _scaled(call, delta.astype(jnp.float32), call.delta_scale)
    return normal.astype(delta.dtype)


def _scaled(
    call: AddNorm, wide: Float[Array, "*T E"], scale: Float[Array, " E"]
) -> Float[Array, "*T E"]:
    """By the root of the mean square of a row, and by a scale."""
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normal = wide * lax.rsqrt(mean_square + call.epsilon)
    return normal * (scale.astype(jnp.float32) + call.scale_offset)
