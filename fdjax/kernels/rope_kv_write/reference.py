"""The definition of `rope_kv_write`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite, Written
from fdjax.notation import Array, Float, Int32


def rope(
    x: Float[Array, "T H D"],
    positions: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    interleaved: bool,
) -> Float[Array, "T H D"]:
    """Rotates the first `2 * R2` dimensions of each head; the rest pass unchanged."""
    half = frequencies.shape[0]
    angles = positions[:, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :half], rotated[..., half:]
    pair = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        turned = jnp.stack(pair, axis=-1).reshape(rotated.shape)
    else:
        turned = jnp.concatenate(pair, axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), rest], axis=-1)


def rope_kv_write(call: RopeKVWrite) -> Written:
    """See `fdjax.kernels.rope_kv_write.rope_kv_write`."""
    qkv, num_kv_heads = call.qkv, call.kv.cache.num_kv_heads
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    query_key, value = qkv[:, :-num_kv_heads], qkv[:, -num_kv_heads:]
    query_key = rope(
        query_key, call.positions, call.frequencies, interleaved=call.interleaved
    )
    query, key = query_key[:, :num_heads], query_key[:, num_heads:]
    return query, call.kv.write(call.slots, key, value)
