"""GEMV on CUDA cores, for the smallest M."""

from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.config import MAX_GEMV_M
from fdjax.kernels.matmul.params import GemvConfig
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    return handler.run(call, GemvConfig())


def refuse(call: Matmul) -> str | None:
    """Why `gemv` cannot serve this call, or `None`."""
    return handler.refuse(call, max_m=MAX_GEMV_M)


IMPL = Impl(run, refuse)
