"""`decode_attention` in C++ on a CPU, which reads keys and values in their pages."""

import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import handler
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float, Int32

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# kMaxHostHeadDim in attend.h: a head's sums lie on the stack.
MAX_HEAD_DIM = 1024
# The widest vectors of float32 to use, where the machine has them: 4 or 8.
MAX_LANES = 8


def run(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    unified: UnifiedMax | None = None,
) -> tuple[Float[Array, "B Hq D"], Int32[Array, "B Hkv"]]:
    """See `fdjax.kernels.decode_attention.decode_attention_counted`."""
    return handler.call(
        q,
        kv,
        page_table,
        lengths,
        slopes,
        layer=layer,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
        unified=unified,
        max_lanes=np.int64(MAX_LANES),
    )


def refuse_arguments(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
) -> str | None:
    """Why the handler does not take these arrays, or `None`."""
    if q.dtype not in DTYPES:
        return f"q is {q.dtype}; it takes float32, bfloat16 and float16"
    if not 1 <= q.shape[2] <= MAX_HEAD_DIM:
        return f"head size {q.shape[2]}; it takes 1 to {MAX_HEAD_DIM}"
    return handler.refuse_arguments(kv, page_table, lengths)


def refuse(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    unified: UnifiedMax | None = None,
) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    del slopes, layer, scale, soft_cap, window, unified
    return ffi.refuse(handler.NAME, platform="cpu") or refuse_arguments(
        q, kv, page_table, lengths
    )


IMPL = Impl(run, refuse)
