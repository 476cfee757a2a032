"""What the FFI handlers of `decode_attention` share on every platform."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention.arguments import DecodeAttention
from fdjax.kernels.paged import by_head, handlers_array, handlers_table
from fdjax.notation import Array

NAME = "decode_attention"


def run(
    call: DecodeAttention,
    operands: Sequence[Array],
    memory: Sequence[jax.ShapeDtypeStruct],
    attributes: ffi.Attributes,
    name: str = NAME,
) -> Sequence[Array]:
    """The handler's results, and what is in its memory then.

    Args:
        call: the operation.
        operands: what only one platform's handler reads beside the call's.
        memory: what only one platform's handler writes beside the results.
        attributes: what the platform's handler is told.
        name: of the handler; another one may do more than this operation.
    """
    q, cache, scores = call.q, call.kv.cache, call.scores
    handler = jax.ffi.ffi_call(
        ffi.target(name),
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
        attributes=attributes,
    )
