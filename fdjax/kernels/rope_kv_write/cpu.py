"""`rope_kv_write` in C++ on a CPU: the CUDA implementation's call, another handler."""

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.kernels.rope_kv_write import cuda
from fdjax.notation import Array, Float, Int32


def refuse(
    qkv: Float[Array, "T H D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    layer: int,
    interleaved: bool,
) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    del kv, positions, slots, layer, interleaved
    return ffi.refuse(cuda.NAME, platform="cpu") or cuda.refuse_arguments(
        qkv, frequencies
    )


IMPL = Impl(cuda.run, refuse)
