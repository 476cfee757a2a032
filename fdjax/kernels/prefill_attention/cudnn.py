"""`prefill_attention` by cuDNN's fused attention: no score matrix in memory."""

import jax
import jax.numpy as jnp

from fdjax import device
from fdjax.kernels.op import Impl
from fdjax.kernels.prefill_attention.arguments import Attended, PrefillAttention

MAX_HEAD_DIM = 128  # 256 only on Hopper and only in some forms


def run(call: PrefillAttention) -> Attended:
    """Gathers the pages, then calls `jax.nn.dot_product_attention` with cuDNN."""
    k, v = call.kv.gather(call.pages.page_table)
    # cuDNN's masks add to scores and multiply values, so what a page holds past the
    # row's end must not be NaN; and an absent page reads as another row's.
    tokens, lengths = call.held()[:, :, None, None], call.pages.lengths
    k, v = jnp.where(tokens, k, 0), jnp.where(tokens, v, 0)
    window = call.scores.window
    out = jax.nn.dot_product_attention(
        call.q.reshape(call.pages.num_rows, -1, *call.q.shape[1:]),
        k,
        v,
        scale=call.scores.scale,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
    return out.reshape(call.q.shape), jnp.zeros(call.pages.num_rows, jnp.int32)


def refuse(call: PrefillAttention) -> str | None:
    """Why cuDNN cannot serve this call."""
    head_dim, dtype = call.q.shape[-1], call.q.dtype
    if device.platform() != "gpu" or "NVIDIA" not in device.kind():
        return "cuDNN needs an NVIDIA GPU"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN takes bfloat16 and float16, not {dtype}"
    if call.pages.starts is not None or call.pages.firsts is not None:
        return (
            "cuDNN's causal mask starts at position 0 in every row, and it wants room "
            "for the same number of queries in each"
        )
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        return f"head size {head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"
    scores = call.scores
    if any(term is not None for term in (scores.soft_cap, scores.slopes, scores.sinks)):
        return "cuDNN has neither soft cap, ALiBi nor sinks here"
    return None


IMPL = Impl(run, refuse)
