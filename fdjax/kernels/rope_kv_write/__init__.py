"""RoPE on queries and keys, then keys and values into their pages, as one operation."""

import jax.numpy as jnp

from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVLayer
from fdjax.kernels.rope_kv_write import cpu, cuda, reference
from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite, Written
from fdjax.notation import Array, Float, Int32

__all__ = ["OP", "RopeKVWrite", "rope_kv_write"]

OP = Op(
    "rope_kv_write",
    reference.rope_kv_write,
    {"cuda": cuda.IMPL, "cpu": cpu.IMPL},
)


def rope_kv_write(
    qkv: Float[Array, "T H D"],
    kv: KVLayer,
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    interleaved: bool,
) -> Written:
    """Rotates q and k of a fused QKV GEMM and writes k and v into their pages.

    One of the nine operations of a layer in the Intel paper (section 3.1): q, k and v
    are read once, and nothing between the GEMM and the attention is materialised
    but the rotated queries.

    The arguments are the fields of `RopeKVWrite`.

    Returns:
        The rotated queries and the updated cache.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = RopeKVWrite(qkv, kv, positions, slots, frequencies, interleaved=interleaved)
    _check(call)
    return OP(call)


def _check(call: RopeKVWrite) -> None:
    qkv, cache, frequencies = call.qkv, call.kv.cache, call.frequencies
    positions, slots = call.positions, call.slots
    if qkv.ndim != 3 or frequencies.ndim != 1:
        raise ValueError(
            f"rope_kv_write: qkv is {qkv.shape} and frequencies {frequencies.shape}; "
            "expected [T, H, D] and [R2]"
        )
    tokens, heads, head_dim = qkv.shape
    num_kv_heads = cache.num_kv_heads
    if heads <= 2 * num_kv_heads:
        raise ValueError(
            f"rope_kv_write: qkv has {heads} heads, but kv has {num_kv_heads} "
            f"key/value heads; a fused QKV needs more than {2 * num_kv_heads}"
        )
    if head_dim != cache.head_dim:
        raise ValueError(
            f"rope_kv_write: qkv's head size is {head_dim}, kv's is {cache.head_dim}"
        )
    if qkv.dtype != cache.dtype:
        raise ValueError(f"rope_kv_write: qkv is {qkv.dtype}, kv is {cache.dtype}")
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
