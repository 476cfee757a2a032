"""`embedding` as one CUDA kernel, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.embedding.arguments import Embedding
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

NAME = "embedding"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
UNIT_BYTES = ffi.limit(NAME, "unit_bytes")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler.

    Attributes:
        scale: of the tokens' vectors; 1: none.
    """

    scale: float


def run(call: Embedding) -> Float[Array, "T E"]:
    """See `fdjax.kernels.embedding.embedding`."""
    size, dtype = call.table.shape[1], call.table.dtype
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((call.tokens.size, size), dtype),
        vmap_method="sequential",
    )
    return handler(
        call.table.values,
        call.tokens,
        ffi.or_empty(call.position_table, 0, size, dtype=dtype),
        ffi.or_empty(call.positions, 0, dtype=jnp.int32),
        attributes=ffi.attributes(Attributes(handlers_scale(call.scale))),
    )


def handlers_scale(scale: float | None) -> float:
    """A factor as handlers are told it; one of 1 is none."""
    return 1.0 if scale is None else scale


def refuse(call: Embedding) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    if reason := ffi.refuse(NAME, platform="gpu"):
        return reason
    tables = [t for t in (call.table, call.position_table) if t is not None]
    dtypes = {table.dtype for table in tables}
    if call.table.dtype not in DTYPES or len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        return f"the tables are {names}; it takes all of one float type"
    if 0 in (table.shape[0] for table in tables):
        return "a table without vectors"
    row_bytes = call.table.shape[1] * call.table.dtype.itemsize
    if row_bytes % UNIT_BYTES:
        return f"a vector is {row_bytes} bytes; it takes multiples of {UNIT_BYTES}"
    return None


IMPL = Impl(run, refuse)
