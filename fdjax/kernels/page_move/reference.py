"""The definition of `page_move`."""

import jax.numpy as jnp

from fdjax.kernels.page_move.arguments import PageMove
from fdjax.kernels.paged import KVCache


def page_move(call: PageMove) -> KVCache:
    """See `fdjax.kernels.page_move.page_move`."""
    kv, sources, targets = call.kv, call.sources, call.targets
    count = kv.num_pages
    there = (sources >= 0) & (sources < count) & (targets >= 0)
    # Past the end: what "drop" does not write.
    places = jnp.where(there, targets, count)
    pages = kv.array.at[jnp.where(there, sources, 0)].get(mode="clip")
    return kv.with_array(kv.array.at[places].set(pages, mode="drop"))
