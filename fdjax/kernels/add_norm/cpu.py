"""`add_norm` in C++ on a CPU: the CUDA implementation's call, another handler.

XLA's sums over rows have one order below 4,096 elements in all, another above; this
handler's is that of the row alone.
"""

from fdjax.kernels import ffi
from fdjax.kernels.add_norm import cuda
from fdjax.kernels.add_norm.arguments import AddNorm
from fdjax.kernels.op import Impl


def refuse(call: AddNorm) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    return ffi.refuse(cuda.NAME, platform="cpu") or cuda.refuse_dtypes(call)


IMPL = Impl(cuda.run, refuse, batch_invariant=True, on_demand=True)
