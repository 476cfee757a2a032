"""What the FFI handlers of `decode_attention` share on every platform."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import attributes, by_head

NAME = "decode_attention"


def run(
    call: DecodeAttention,
    *memory: jax.ShapeDtypeStruct,
    **launch: np.int64,
) -> Attended:
    """The handler's result.

    Args:
        call: the operation.
        memory: what only one platform's handler writes beside the results.
        launch: attributes that only one platform's handler takes.
    """
    q, kv, scores = call.q, call.kv, call.scores
    bounds = call.unified or UnifiedMax(0.0, -1.0, 1.0)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((q.shape[0], kv.shape[4]), jnp.int32),
            *memory,
        ),
        vmap_method="sequential",
    )
    out, recomputed, *_ = handler(
        q,
        kv,
        call.page_table,
        call.lengths,
        by_head(scores.slopes),
        by_head(scores.sinks),
        **attributes(call),
        scheme="synchronised" if call.unified is None else "unified",
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        **launch,
    )
    return out, recomputed
