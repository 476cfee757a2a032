"""`rms_norm` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.kernels.rms_norm.arguments import RmsNorm
from fdjax.notation import Array, Float

NAME = "rms_norm"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# kMaxSize in launch.cuh: bytes of a row that one block keeps in registers.
MAX_ROW_BYTES = 4 * 512 * 16


def run(call: RmsNorm) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.rms_norm.rms_norm`."""
    rows = call.x.reshape(-1, call.x.shape[-1])
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        vmap_method="sequential",
    )
    out = handler(
        rows,
        call.scale,
        epsilon=np.float32(call.epsilon),
        scale_offset=np.float32(call.scale_offset),
    )
    return out.reshape(call.x.shape)


def refuse(call: RmsNorm) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    x, scale = call.x, call.scale
    if reason := ffi.refuse(NAME, platform="gpu"):
        return reason
    if x.dtype not in DTYPES or scale.dtype != x.dtype:
        return f"x is {x.dtype} and scale {scale.dtype}; it takes one float type"
    row_bytes = x.shape[-1] * x.dtype.itemsize
    if row_bytes % 16 or row_bytes > MAX_ROW_BYTES:
        return (
            f"a row is {row_bytes} bytes; it takes multiples of 16 up to "
            f"{MAX_ROW_BYTES}"
        )
    return None


IMPL = Impl(run, refuse)
