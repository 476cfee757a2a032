"""What an implementation of attention over pages takes, and why not the rest."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.paged import KVCache, PagedAttention

ANY = range(1, 2**31)
# Of a row: sums of unified weights stay finite up to here.
MAX_TOKENS = ffi.limit("paged", "max_tokens")
STRIDES = ("page_stride", "token_stride", "head_stride", "value_stride")
# Of the KV array, layers and halves counted.
MAX_SLOTS = ffi.limit("paged", "max_slots")


@dataclasses.dataclass(frozen=True)
class Limits:
    """The calls that an implementation takes.

    Attributes:
        dtypes: of queries, keys and values.
        head_dims: sizes of a head, `D`.
        page_sizes: slots of a page, `Z`.
        groups: query heads of a key/value head, `G`.
        queries: of all rows together.
        widths: elements from a key to its value in pages that are interleaved
            (`PageLayout.is_interleaved`); none: pages are page-major.
    """

    dtypes: Sequence[jax.typing.DTypeLike]
    head_dims: Sequence[int]
    page_sizes: Sequence[int] = ANY
    groups: Sequence[int] = ANY
    queries: Sequence[int] = range(2**31)
    widths: Sequence[int] = ()

    def refuse(self, call: PagedAttention) -> str | None:
        """Why a call is not among them, or `None`."""
        if reason := refuse_layout(call.kv.cache, widths=self.widths):
            return reason
        queries, num_heads, head_dim = call.q.shape
        page_size, num_kv_heads = call.kv.cache.page_size, call.kv.cache.num_kv_heads
        integers = (call.pages.page_table.dtype, call.pages.lengths.dtype)
        if call.q.dtype not in self.dtypes:
            names = [jnp.dtype(dtype).name for dtype in self.dtypes]
            return f"q is {call.q.dtype}; it takes {_listed(names)}"
        if any(dtype != jnp.int32 for dtype in integers):
            return (
                f"page_table is {integers[0]} and lengths {integers[1]}; it takes int32"
            )
        if call.group not in self.groups:
            return (
                f"{num_heads} query heads over {num_kv_heads} key/value heads; it "
                f"takes {_listed(self.groups)} for each"
            )
        sizes = (
            (head_dim in self.head_dims, f"head size {head_dim}", self.head_dims),
            (page_size in self.page_sizes, f"page size {page_size}", self.page_sizes),
            (queries in self.queries, f"{queries} queries", self.queries),
        )
        for taken, found, limits in sizes:
            if not taken:
                return f"{found}; it takes {_listed(limits)}"
        return None


def refuse_layout(cache: KVCache, *, widths: Sequence[int] = ()) -> str | None:
    """Why a handler does not take the layout of a cache, or `None`.

    Args:
        cache: whose layout it is.
        widths: see `Limits`.
    """
    layout = cache.layout
    if widths and layout != layout.as_page_major and layout.is_interleaved:
        width = layout.value_stride
        return None if width in widths else f"width {width}; it takes {_listed(widths)}"
    own, taken = (
        {name: getattr(layout, name) for name in STRIDES}
        for layout in (cache.layout, cache.layout.as_page_major)
    )
    if own == taken:
        return None
    return f"the cache's strides are {own}; it takes page-major ones, {taken}"


def refuse_sizes(call: PagedAttention) -> str | None:
    """Why the arrays are too large for every handler, or `None`."""
    cache = call.kv.cache
    slots = 2 * cache.num_pages * cache.num_layers * cache.page_size
    room = call.pages.width * cache.page_size  # as handlers count it, by slot too
    if room > MAX_TOKENS:
        return f"pages for {room} tokens a row; it takes {MAX_TOKENS}"
    if slots > MAX_SLOTS:
        return f"{slots} slots; it takes {MAX_SLOTS}"
    return None


def _listed(values: Sequence[object]) -> str:
    """A sequence in words: "1 to 16" for a range, else "64, 80 and 96"."""
    if isinstance(values, range):
        steps = "" if values.step == 1 else f" in steps of {values.step}"
        return f"{values[0]} to {values[-1]}{steps}"
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
