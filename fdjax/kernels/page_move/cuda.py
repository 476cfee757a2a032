"""`page_move` as one CUDA kernel, called through XLA's FFI."""

import jax

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.kernels.page_move.arguments import PageMove
from fdjax.kernels.paged import KVCache

NAME = "page_move"
UNIT_BYTES = ffi.limit(NAME, "unit_bytes")
MAX_MOVES = ffi.limit(NAME, "max_moves")


def run(call: PageMove) -> KVCache:
    """See `fdjax.kernels.page_move.page_move`; `kv` is updated in place."""
    array = call.kv.array
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct(array.shape, array.dtype),
        # No vmap_method: a batch of this would be as many copies of the KV array.
        input_output_aliases={0: 0},
    )
    return call.kv.with_array(handler(array, call.sources, call.targets))


def refuse_arguments(call: PageMove) -> str | None:
    """Why the kernel does not take these arrays, or `None`."""
    page_bytes = call.kv.layout.page_stride * call.kv.dtype.itemsize
    if page_bytes % UNIT_BYTES:
        return f"a page is {page_bytes} bytes; it takes multiples of {UNIT_BYTES}"
    if call.sources.size > MAX_MOVES:
        return f"{call.sources.size} pages; it takes {MAX_MOVES}"
    return None


def refuse(call: PageMove) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(call)


IMPL = Impl(run, refuse, batch_invariant=True)
