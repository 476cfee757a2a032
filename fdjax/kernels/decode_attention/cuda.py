"""`decode_attention` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import config
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float, Int32

NAME = "decode_attention"
DTYPES = (jnp.bfloat16, jnp.float16)
HEAD_DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = range(8, 129)
MAX_GROUP = 16
MAX_ROWS = 65_535  # blocks of a grid along z
MAX_TOKENS = 2**25  # of a row: the reciprocal of the page size is exact up to here
MAX_SLOTS = 2**31 - 1  # of the KV array, layers and halves counted
ALL_TOKENS = 2**31 - 1


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
    num_kv_heads, page_size = kv.shape[4], kv.shape[3]
    cut = config.heuristic(
        config.Call(q.shape[0], num_kv_heads, page_table.shape[1] * page_size)
    )
    bounds = unified or UnifiedMax(0.0, -1.0, 1.0)
    call = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((q.shape[0], num_kv_heads), jnp.int32),
        ),
        vmap_method="sequential",
    )
    out, recomputed = call(
        q,
        kv,
        page_table,
        lengths,
        jnp.zeros(0, jnp.float32) if slopes is None else slopes.astype(jnp.float32),
        layer=np.int64(layer),
        scale=np.float32(scale),
        soft_cap=np.float32(soft_cap or 0.0),
        window=np.int64(min(window or ALL_TOKENS, ALL_TOKENS)),
        scheme="synchronised" if unified is None else "unified",
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        splits=np.int64(cut.splits),
        heads_per_block=np.int64(cut.heads_per_block),
        warps=np.int64(cut.warps),
    )
    return out, recomputed


def refuse_arguments(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
) -> str | None:
    """Why the kernel takes none of these arrays on any GPU, or `None`."""
    num_pages, num_layers, _, page_size, num_kv_heads, head_dim = kv.shape
    rows, num_heads, _ = q.shape
    tokens, slots = page_table.shape[1] * page_size, num_pages * num_layers * page_size
    problems = (
        (q.dtype not in DTYPES, f"q is {q.dtype}; it takes bfloat16 and float16"),
        (head_dim not in HEAD_DIMS, f"head size {head_dim}; it takes {HEAD_DIMS}"),
        (
            num_heads > MAX_GROUP * num_kv_heads,
            f"{num_heads} query heads over {num_kv_heads} key/value heads; it takes "
            f"up to {MAX_GROUP} for each",
        ),
        (page_size not in PAGE_SIZES, f"page size {page_size}; it takes 8 to 128"),
        (
            page_table.dtype != jnp.int32 or lengths.dtype != jnp.int32,
            f"page_table is {page_table.dtype} and lengths {lengths.dtype}; it takes "
            "int32",
        ),
        (rows > MAX_ROWS, f"{rows} rows; it takes {MAX_ROWS}"),
        (
            tokens > MAX_TOKENS,
            f"pages for {tokens} tokens a row; it takes {MAX_TOKENS}",
        ),
        (2 * slots > MAX_SLOTS, f"{2 * slots} slots; it takes {MAX_SLOTS}"),
    )
    return next((reason for wrong, reason in problems if wrong), None)


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
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(
        q, kv, page_table, lengths
    )


IMPL = Impl(run, refuse)
