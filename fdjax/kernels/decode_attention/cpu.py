"""`decode_attention` in C++ on a CPU, which reads keys and values in their pages."""

import dataclasses

import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import handler
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import SchemeAttributes, UnifiedMax
from fdjax.kernels.limits import ANY, Limits, refuse_sizes
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import AttentionAttributes, attention_attributes

LIMITS = Limits(
    dtypes=(jnp.float32, jnp.bfloat16, jnp.float16),
    # A head's sums lie on the stack.
    head_dims=range(1, ffi.limit(handler.NAME, "max_host_head_dim") + 1),
    widths=ANY,
)
# The widest vectors of float32 to use, where the machine has them: 4 or 8.
MAX_LANES = ffi.limit(handler.NAME, "max_lanes")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the CPU's handler."""

    attention: AttentionAttributes
    scheme: SchemeAttributes
    max_lanes: int


def run(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    told = Attributes(
        attention_attributes(call), UnifiedMax.attributes(call.unified), MAX_LANES
    )
    out, recomputed = handler.run(call, (), (), ffi.attributes(told))
    return out, recomputed


def refuse_arguments(call: DecodeAttention) -> str | None:
    """Why the handler does not take these arrays, or `None`."""
    if call.pages.by_slot:
        return "rows are told by slots"
    return LIMITS.refuse(call) or refuse_sizes(call)


def refuse(call: DecodeAttention) -> str | None:
    """Why the CPU handler cannot serve this call, or `None`."""
    return ffi.refuse(handler.NAME, platform="cpu") or refuse_arguments(call)


IMPL = Impl(run, refuse, batch_invariant=True)
