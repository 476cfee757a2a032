"""`decode_attention` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import config, handler
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.limits import Limits, refuse_sizes
from fdjax.kernels.op import Impl

LIMITS = Limits(
    dtypes=(jnp.bfloat16, jnp.float16),
    head_dims=(64, 80, 96, 128, 256),
    page_sizes=range(8, 129),
    groups=range(1, 17),
    queries=range(65_536),  # blocks of a grid along z
)


def run(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    rows, num_kv_heads = call.q.shape[0], call.kv.shape[4]
    warps = config.max_warps(call.q.shape[2], call.group)
    cut = config.heuristic(config.Call(rows, num_kv_heads, call.max_tokens, warps))
    floats = cut.part_floats(*call.q.shape)
    return handler.run(
        call,
        jax.ShapeDtypeStruct((floats,), jnp.float32),
        parts=np.int64(cut.parts),
        splits=np.int64(cut.splits),
        heads_per_block=np.int64(cut.heads_per_block),
        warps=np.int64(cut.warps),
    )


# Heads of other sizes have no kernel for larger groups: no model has them.
LARGE_GROUP_HEAD_DIMS, SMALL_GROUP = (64, 128), 8


def refuse_arguments(call: DecodeAttention) -> str | None:
    """Why the kernel takes none of these arrays on any GPU, or `None`."""
    head_dim = call.q.shape[2]
    if call.group > SMALL_GROUP and head_dim not in LARGE_GROUP_HEAD_DIMS:
        return (
            f"{call.group} query heads of size {head_dim} for each key/value head; it "
            f"takes {SMALL_GROUP}"
        )
    return LIMITS.refuse(call) or refuse_sizes(call)


def refuse(call: DecodeAttention) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    return ffi.refuse(handler.NAME, platform="gpu") or refuse_arguments(call)


IMPL = Impl(run, refuse)
