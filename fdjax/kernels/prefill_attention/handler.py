"""`prefill_attention` by the extension's handlers: C++ on a CPU, CUDA on a GPU."""

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.limits import Limits, refuse_sizes
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import attributes, by_head
from fdjax.kernels.prefill_attention.arguments import PrefillAttention
from fdjax.kernels.prefill_attention.tiles import tiles_of
from fdjax.notation import Array, Float

NAME = "prefill_attention"
TILE_ROWS = 128  # kTileRows in tile.cuh: queries of a tile times heads of a group
CPU_LIMITS = Limits(
    dtypes=(jnp.float32, jnp.bfloat16, jnp.float16), head_dims=range(1, 1025)
)
CUDA_LIMITS = Limits(
    dtypes=(jnp.bfloat16, jnp.float16),
    head_dims=range(8, 257, 8),
    page_sizes=range(2, 129),
    groups=range(1, TILE_ROWS + 1),
)


def run(call: PrefillAttention) -> Float[Array, "T Hq D"]:
    """See `fdjax.kernels.prefill_attention.prefill_attention`."""
    scores, pages, num_queries = call.scores, call.pages, call.q.shape[0]
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(call.q.shape, call.q.dtype),
        vmap_method="sequential",
    )
    return handler(
        call.q,
        call.kv.cache.array,
        pages.page_table,
        pages.lengths,
        tiles_of(
            pages.lengths,
            pages.first_positions,
            pages.first_tokens(num_queries),
            num_queries=num_queries,
            max_tokens=call.max_tokens,
            tile_tokens=max(TILE_ROWS // call.group, 1),
        ),
        by_head(scores.slopes),
        by_head(scores.sinks),
        **attributes(call),
    )


def refuse_arguments(call: PrefillAttention, limits: Limits) -> str | None:
    """Why a handler with these limits does not take the arrays, or `None`."""
    return limits.refuse(call) or refuse_sizes(call)


def _refuse_on_cpu(call: PrefillAttention) -> str | None:
    return ffi.refuse(NAME, platform="cpu") or refuse_arguments(call, CPU_LIMITS)


def _refuse_on_gpu(call: PrefillAttention) -> str | None:
    if call.scores.scale <= 0:
        return f"scale is {call.scores.scale}; it takes one above 0"
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(call, CUDA_LIMITS)


CPU = Impl(run, _refuse_on_cpu, batch_invariant=True)
CUDA = Impl(run, _refuse_on_gpu)
