"""RoPE on queries and keys, then keys and values into their pages, as one operation."""

import jax.numpy as jnp

from fdjax.kernels.op import Op
from fdjax.kernels.rope_kv_write import cpu, cuda, reference
from fdjax.notation import Array, Float, Int32

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

    Args:
        qkv: the fused product, heads in the order q, k, v; `H = Hq + 2 * Hkv`.
        kv: the KV array. Donate it, and it is updated in place.
        positions: position of each token in its sequence.
        slots: where each token goes, `page * Z + slot`; negative writes nothing
            (padding).
        frequencies: `theta ** (-2 i / R)`, scaled; empty where positions enter
            otherwise (then only k and v are written).
        layer: which layer of each page.
        interleaved: pairs are (0, 1), (2, 3), ... instead of (i, i + R / 2).

    Returns:
        The rotated queries and the updated KV array.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    _check(qkv, kv, positions, slots, frequencies, layer)
    return OP(
        qkv, kv, positions, slots, frequencies, layer=layer, interleaved=interleaved
    )


def _check(
    qkv: Array,
    kv: Array,
    positions: Array,
    slots: Array,
    frequencies: Array,
    layer: int,
) -> None:
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
