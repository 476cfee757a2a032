"""Flat GEMMs on Hopper's tensor cores: M up to 64, padded to 8, 16, 32 or 64."""

from fdjax.kernels import ffi
from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.config import MAX_FLAT_M, flat_config
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    m, (n, k) = call.x.shape[0], call.weight.shape
    config = flat_config(m, n, k, gated=call.gated, dtype=call.weight.dtype)
    return handler.run(call, config)


def refuse(call: Matmul) -> str | None:
    """Why `flat` cannot serve this call, or `None`."""
    return handler.refuse(call, max_m=MAX_FLAT_M) or ffi.refuse_below_sm90()


IMPL = Impl(run, refuse)
