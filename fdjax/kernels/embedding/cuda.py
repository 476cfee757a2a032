"""`embedding` as one CUDA kernel, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.embedding.arguments import Embedding
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

NAME = "embedding"
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
UNIT_BYTES = ffi.limit(NAME, "unit_bytes")


def run(call: Embedding) -> Float[Array, "T E"]:
    """See `fdjax.kernels.embedding.embedding`."""
    size, dtype = call.table.shape[1], call.table.dtype
    none = jnp.zeros((0, size), dtype), jnp.zeros(0, jnp.int32)
    table = none[0] if call.position_table is None else call.position_table
    positions = none[1] if call.positions is None else call.positions
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((call.tokens.size, size), dtype),
        vmap_method="sequential",
    )
    return handler(
        call.table.values,
        call.tokens,
        table,
        positions,
        has_scale=call.scale is not None,
        scale=np.float32(call.scale or 0.0),
    )


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
