"""Whole pages of the KV array copied to other places in it."""

import jax.numpy as jnp

from fdjax.kernels.paged import KVCache
from fdjax.notation import Array, Int32

__all__ = ["page_move"]


def page_move(
    kv: KVCache, sources: Int32[Array, " N"], targets: Int32[Array, " N"]
) -> KVCache:
    """Copies page `sources[i]` to page `targets[i]`, with all its layers.

    Args:
        kv: the cache.
        sources: ids; none is a target too.
        targets: ids, distinct. Where one is not below `P`, nothing is copied.
    """
    pages = jnp.take(kv.array, sources, axis=0, mode="clip")
    return kv.with_array(kv.array.at[targets].set(pages, mode="drop"))
