"""`add_norm` as one CUDA kernel, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.add_norm.arguments import AddNorm, Normalised
from fdjax.kernels.op import Impl

NAME = "add_norm"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# Bytes of an access, and of a row that one block keeps in registers.
UNIT_BYTES = ffi.limit(NAME, "unit_bytes")
MAX_ROW_BYTES = ffi.limit(NAME, "max_row_bytes")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of both handlers."""

    epsilon: float
    scale_offset: float


def run(call: AddNorm) -> Normalised:
    """See `fdjax.kernels.add_norm.add_norm`."""
    size, dtype = call.x.shape[-1], call.x.dtype
    rows = call.x.reshape(-1, size)
    delta, has_delta = call.delta, call.delta is not None
    delta = ffi.or_empty(delta, 0, size, dtype=dtype).reshape(-1, size)
    delta_scale = ffi.or_empty(call.delta_scale, 0, dtype=dtype)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(rows.shape, dtype),
            jax.ShapeDtypeStruct(delta.shape, dtype),
        ),
        vmap_method="sequential",
        input_output_aliases={1: 1} if has_delta else {},  # the sum, where delta was
    )
    normal, total = handler(
        rows,
        delta,
        delta_scale,
        call.scale,
        ffi.or_empty(call.bias, 0, dtype=dtype),
        attributes=ffi.attributes(Attributes(call.epsilon, call.scale_offset)),
    )
    x = total.reshape(call.x.shape) if has_delta else call.x
    return Normalised(normal.reshape(call.x.shape), x)


def refuse(call: AddNorm) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    return ffi.refuse(NAME, platform="gpu") or refuse_dtypes(call) or _refuse_size(call)


def refuse_dtypes(call: AddNorm) -> str | None:
    """Why no handler takes the operands' types, or `None`."""
    dtypes = {operand.dtype for operand in jax.tree.leaves(call)}
    if call.x.dtype not in DTYPES or len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        return f"the operands are {names}; it takes all of one float type"
    return None


def _refuse_size(call: AddNorm) -> str | None:
    x = call.x
    row_bytes = x.shape[-1] * x.dtype.itemsize
    if row_bytes % UNIT_BYTES or row_bytes > MAX_ROW_BYTES:
        return (
            f"a row is {row_bytes} bytes; it takes multiples of {UNIT_BYTES} up to "
            f"{MAX_ROW_BYTES}"
        )
    return None


IMPL = Impl(run, refuse)
