"""`rms_norm` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

NAME = "rms_norm"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# kMaxSize in launch.cuh: bytes of a row that one block keeps in registers.
MAX_ROW_BYTES = 4 * 512 * 16


def run(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float,
    scale_offset: float,
) -> Float[Array, "*T E"]:
    """See `fdjax.kernels.rms_norm.rms_norm`."""
    rows = x.reshape(-1, x.shape[-1])
    call = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(rows.shape, x.dtype),
        vmap_method="sequential",
    )
    out = call(
        rows, scale, epsilon=np.float32(epsilon), scale_offset=np.float32(scale_offset)
    )
    return out.reshape(x.shape)


def refuse(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float,
    scale_offset: float,
) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    del epsilon, scale_offset
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
