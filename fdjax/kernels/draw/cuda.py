"""`draw` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.draw.arguments import Draw
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Int32

NAME = "draw"
# The blocks of a cluster hold a row in their shared memory.
MAX_VOCAB = ffi.limit(NAME, "max_vocab")


def run(call: Draw) -> Int32[Array, " B"]:
    """See `fdjax.kernels.draw.draw`."""
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(call.logits.shape[:1], jnp.int32),
        vmap_method="sequential",
    )
    return handler(
        call.logits,
        ffi.or_empty(call.keys, 0, 2, dtype=jnp.uint32),
        ffi.or_empty(call.steps, 0, dtype=jnp.int32),
        ffi.or_empty(call.temperature, 0, dtype=jnp.float32),
        ffi.or_empty(call.top_k, 0, dtype=jnp.int32),
        ffi.or_empty(call.top_p, 0, dtype=jnp.float32),
        ffi.or_empty(call.min_p, 0, dtype=jnp.float32),
    )


def refuse(call: Draw) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    reason = ffi.refuse(NAME, platform="gpu") or ffi.refuse_below_sm90()
    return reason or refuse_arguments(call)


def refuse_arguments(call: Draw) -> str | None:
    """Why the handler does not take these arrays, or `None`."""
    vocab_size = call.logits.shape[-1]
    if call.logits.dtype != jnp.float32:
        return f"logits are {call.logits.dtype}; it takes float32"
    if vocab_size > MAX_VOCAB:
        return f"{vocab_size} tokens; it takes {MAX_VOCAB}"
    if call.keys is not None and not jax.config.jax_threefry_partitionable:
        return "jax_threefry_partitionable is off; it takes the bits of on"
    return None


IMPL = Impl(run, refuse)
