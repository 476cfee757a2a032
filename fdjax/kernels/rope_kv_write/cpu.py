"""`rope_kv_write` in C++ on a CPU: the CUDA implementation's call, another handler."""

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.kernels.rope_kv_write import cuda
from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite


def refuse(call: RopeKVWrite) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    return ffi.refuse(cuda.NAME, platform="cpu") or cuda.refuse_arguments(call)


IMPL = Impl(cuda.run, refuse, batch_invariant=True)
