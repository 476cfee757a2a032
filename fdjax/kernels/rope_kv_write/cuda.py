"""`rope_kv_write` as one CUDA kernel, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.limits import refuse_layout
from fdjax.kernels.op import Impl
from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite, Written

NAME = "rope_kv_write"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
MAX_FREQUENCIES = ffi.limit(NAME, "max_frequencies")  # in a token's table of angles


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of both handlers."""

    layer: int
    interleaved: bool


def run(call: RopeKVWrite) -> Written:
    """See `fdjax.kernels.rope_kv_write.rope_kv_write`; `kv` is updated in place."""
    qkv, cache = call.qkv, call.kv.cache
    tokens, heads, head_dim = qkv.shape
    query_shape = (tokens, heads - 2 * cache.num_kv_heads, head_dim)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(query_shape, qkv.dtype),
            jax.ShapeDtypeStruct(cache.array.shape, cache.dtype),
        ),
        # No vmap_method: a batch of this would be as many copies of the KV array.
        input_output_aliases={1: 1},
    )
    query, written = handler(
        qkv,
        cache.array,
        call.positions,
        call.slots,
        call.frequencies,
        attributes=ffi.attributes(Attributes(call.kv.index, call.interleaved)),
    )
    return query, cache.with_array(written)


def refuse_arguments(call: RopeKVWrite) -> str | None:
    """Why no handler takes these arrays, or `None`."""
    qkv, frequencies = call.qkv, call.frequencies
    if qkv.dtype not in DTYPES:
        return f"qkv is {qkv.dtype}; it takes float32, bfloat16 and float16"
    if frequencies.dtype != jnp.float32:
        return f"frequencies are {frequencies.dtype}; it takes float32"
    if frequencies.shape[0] > MAX_FREQUENCIES:
        return f"{frequencies.shape[0]} frequencies; it takes {MAX_FREQUENCIES}"
    if qkv.shape[2] % 2 != 0:
        return f"head size {qkv.shape[2]} is odd"
    return refuse_layout(call.kv.cache)


def refuse(call: RopeKVWrite) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(call)


IMPL = Impl(run, refuse)
