"""`rope_kv_write` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float, Int32

NAME = "rope_kv_write"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# kMaxFrequencies in params.h: the table of a token's angles.
MAX_FREQUENCIES = 1024


def run(
    qkv: Float[Array, "T H D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    layer: int,
    interleaved: bool,
) -> tuple[Float[Array, "T Hq D"], Float[Array, "P L 2 Z Hkv D"]]:
    """See `fdjax.kernels.rope_kv_write.rope_kv_write`; `kv` is updated in place."""
    tokens, heads, head_dim = qkv.shape
    query_shape = (tokens, heads - 2 * kv.shape[4], head_dim)
    call = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(query_shape, qkv.dtype),
            jax.ShapeDtypeStruct(kv.shape, kv.dtype),
        ),
        input_output_aliases={1: 1},
        vmap_method="sequential",
    )
    query, kv = call(
        qkv,
        kv,
        positions,
        slots,
        frequencies,
        layer=np.int64(layer),
        interleaved=np.bool_(interleaved),
    )
    return query, kv


def refuse_arguments(qkv: Array, frequencies: Array) -> str | None:
    """Why no handler takes these arrays, or `None`."""
    if qkv.dtype not in DTYPES:
        return f"qkv is {qkv.dtype}; it takes float32, bfloat16 and float16"
    if frequencies.dtype != jnp.float32:
        return f"frequencies are {frequencies.dtype}; it takes float32"
    if frequencies.shape[0] > MAX_FREQUENCIES:
        return f"{frequencies.shape[0]} frequencies; it takes {MAX_FREQUENCIES}"
    if qkv.shape[2] % 2 != 0:
        return f"head size {qkv.shape[2]} is odd"
    return None


def refuse(
    qkv: Float[Array, "T H D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    layer: int,
    interleaved: bool,
) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    del kv, positions, slots, layer, interleaved
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(qkv, frequencies)


IMPL = Impl(run, refuse)
