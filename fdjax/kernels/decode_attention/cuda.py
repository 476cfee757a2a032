"""`decode_attention` as one CUDA kernel, called through XLA's FFI."""

import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import config, handler
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float, Int32

DTYPES = (jnp.bfloat16, jnp.float16)
HEAD_DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = range(8, 129)
MAX_GROUP = 16
MAX_ROWS = 65_535  # blocks of a grid along z


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
    max_tokens = page_table.shape[1] * kv.shape[3]
    cut = config.heuristic(config.Call(q.shape[0], kv.shape[4], max_tokens))
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
        splits=np.int64(cut.splits),
        heads_per_block=np.int64(cut.heads_per_block),
        warps=np.int64(cut.warps),
    )


def refuse_arguments(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
) -> str | None:
    """Why the kernel takes none of these arrays on any GPU, or `None`."""
    _, _, _, page_size, num_kv_heads, head_dim = kv.shape
    rows, num_heads, _ = q.shape
    problems = (
        (q.dtype not in DTYPES, f"q is {q.dtype}; it takes bfloat16 and float16"),
        (head_dim not in HEAD_DIMS, f"head size {head_dim}; it takes {HEAD_DIMS}"),
        (
            num_heads > MAX_GROUP * num_kv_heads,
            f"{num_heads} query heads over {num_kv_heads} key/value heads; it takes "
            f"up to {MAX_GROUP} for each",
        ),
        (page_size not in PAGE_SIZES, f"page size {page_size}; it takes 8 to 128"),
        (rows > MAX_ROWS, f"{rows} rows; it takes {MAX_ROWS}"),
    )
    own = next((reason for wrong, reason in problems if wrong), None)
    return own or handler.refuse_arguments(kv, page_table, lengths)


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
    """Why the CUDA kernel cannot serve this call, or `None`."""
    del slopes, layer, scale, soft_cap, window, unified
    return ffi.refuse(handler.NAME, platform="gpu") or refuse_arguments(
        q, kv, page_table, lengths
    )


IMPL = Impl(run, refuse)
