"""What the FFI handlers of `decode_attention` share on every platform."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import attributes, by_head, handlers_array, handlers_table
from fdjax.notation import Array

NAME = "decode_attention"


def run(call: DecodeAttention, **launch: np.int64) -> Attended:
    """The result of a handler that has no operands and no memory of its own."""
    out, recomputed = run_with(call, (), (), **launch)
    return out, recomputed


def run_with(
    call: DecodeAttention,
    operands: Sequence[Array],
    memory: Sequence[jax.ShapeDtypeStruct],
    **launch: np.generic,
) -> Sequence[Array]:
    """The handler's results, and what is in its memory then.

    Args:
        call: the operation.
        operands: what only one platform's handler reads beside the call's.
        memory: what only one platform's handler writes beside the results.
        launch: attributes that only one platform's handler takes.
    """
    q, cache, scores = call.q, call.kv.cache, call.scores
    bounds = call.unified or UnifiedMax(0.0, -1.0, 1.0)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((q.shape[0], cache.num_kv_heads), jnp.int32),
            *memory,
        ),
        vmap_method="sequential",
    )
    return handler(
        q,
        handlers_array(cache),
        handlers_table(call),
        call.pages.lengths,
        by_head(scores.slopes),
        by_head(scores.sinks),
        *operands,
        **attributes(call),
        scheme="synchronised" if call.unified is None else "unified",
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        **launch,
    )
