"""RoPE on queries and keys, then keys and values into their pages, as one operation."""

import jax.numpy as jnp

from fdjax.kernels.op import Op
from fdjax.kernels.rope_kv_write import cpu, cuda, reference
from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite
from fdjax.notation import Array, Float, Int32

__all__ = ["OP", "RopeKVWrite", "rope_kv_write"]

OP = Op(
    "rope_kv_write",
    reference.rope_kv_write,
    {"cuda": cuda.IMPL, "cpu": cpu.IMPL},
)


def rope_kv_write(
    qkv: Float[Array, "T H D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    layer: int,
    interleaved: bool,
) -> tuple[Float[Array, "T Hq D"], Float[Array, "P L 2 Z Hkv D"]]:
    """Rotates q and k of a fused QKV product and writes k and v into their pages.

    One of the nine operations of a layer in the Intel paper (section 3.1): q, k and v
    are read once, and nothing between the product and the attention is materialised
    but the rotated queries.

    The arguments are the fields of `RopeKVWrite`.

    Returns:
        The rotated queries and the updated KV array.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = RopeKVWrite(
        qkv, kv, positions, slots, frequencies, layer=layer, interleaved=interleaved
    )
    _check(call)
    return OP(call)


def _check(call: RopeKVWrite) -> None:
    qkv, kv, frequencies = call.qkv, call.kv, call.frequencies
    positions, slots, layer = call.positions, call.slots, call.layer
    if qkv.ndim != 3 or kv.ndim != 6 or kv.shape[2] != 2 or frequencies.ndim != 1:
        raise ValueError(
            f"rope_kv_write: qkv is {qkv.shape}, kv {kv.shape} and frequencies "
            f"{frequencies.shape}; expected [T, H, D], [P, L, 2, Z, Hkv, D] and [R2]"
        )
    tokens, heads, head_dim = qkv.shape
    _, layers, _, _, num_kv_heads, kv_head_dim = kv.shape
    if heads <= 2 * num_kv_heads:
        raise ValueError(
            f"rope_kv_write: qkv has {heads} heads, but kv has {num_kv_heads} "
            f"key/value heads; a fused product needs more than {2 * num_kv_heads}"
        )
    if head_dim != kv_head_dim:
        raise ValueError(
            f"rope_kv_write: qkv's head size is {head_dim}, kv's is {kv_head_dim}"
        )
    if qkv.dtype != kv.dtype:
        raise ValueError(f"rope_kv_write: qkv is {qkv.dtype}, kv is {kv.dtype}")
    if positions.shape != (tokens,) or slots.shape != (tokens,):
        raise ValueError(
            f"rope_kv_write: qkv has {tokens} tokens, positions {positions.shape} "
            f"and slots {slots.shape}"
        )
    if positions.dtype != jnp.int32 or slots.dtype != jnp.int32:
        raise ValueError(
            f"rope_kv_write: positions are {positions.dtype}, slots {slots.dtype}; "
            "both must be int32"
        )
    if 2 * frequencies.shape[0] > head_dim:
        raise ValueError(
            f"rope_kv_write: {frequencies.shape[0]} frequencies rotate "
            f"{2 * frequencies.shape[0]} dimensions of a head of {head_dim}"
        )
    if not 0 <= layer < layers:
        raise ValueError(f"rope_kv_write: layer {layer} of a kv array of {layers}")
