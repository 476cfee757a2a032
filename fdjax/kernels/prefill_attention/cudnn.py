"""`prefill_attention` by cuDNN's fused attention: no score matrix in memory."""

import jax
import jax.numpy as jnp

from fdjax import device
from fdjax.kernels.paged import gather_pages
from fdjax.notation import Array, Float, Int32

MAX_HEAD_DIM = 128  # 256 only on Hopper and only in some forms


def refuse(
    q: Array,
    kv: Array,
    page_table: Array,
    lengths: Array,
    starts: Array | None,
    slopes: Array | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> str | None:
    """Why cuDNN cannot serve this call."""
    head_dim = q.shape[-1]
    if device.platform() != "gpu" or "NVIDIA" not in device.kind():
        return "cuDNN needs an NVIDIA GPU"
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN takes bfloat16 and float16, not {q.dtype}"
    if starts is not None:
        return "cuDNN's causal mask starts at position 0 in every row"
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        return f"head size {head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"
    if soft_cap is not None or slopes is not None:
        return "cuDNN has neither soft cap nor ALiBi here"
    return None


def prefill_attention(
    q: Float[Array, "B S Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"] | None,
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> Float[Array, "B S Hq D"]:
    """Gathers the pages, then calls `jax.nn.dot_product_attention` with cuDNN."""
    k, v = gather_pages(kv, page_table, layer=layer)
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scale,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
