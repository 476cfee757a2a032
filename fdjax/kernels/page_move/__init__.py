"""Whole pages of the KV array copied to other places in it, as one operation."""

import jax.numpy as jnp

from fdjax.kernels.op import Op
from fdjax.kernels.page_move import cuda, reference
from fdjax.kernels.page_move.arguments import PageMove
from fdjax.kernels.paged import KVCache
from fdjax.notation import Array, Int32

__all__ = ["OP", "PageMove", "page_move"]

OP = Op("page_move", reference.page_move, {"cuda": cuda.IMPL}, batch_invariant=True)


def page_move(
    kv: KVCache, sources: Int32[Array, " N"], targets: Int32[Array, " N"]
) -> KVCache:
    """Copies page `sources[i]` to page `targets[i]`, with all its layers.

    Sources and targets must be disjoint, and targets distinct: the copies are made in
    any order, and what a page holds that breaks this is not defined. It is not checked,
    for ids are data. Where a source or a target is negative or not below `P`, nothing
    is copied: padding. The pages copied from keep what they hold.

    The arguments are the fields of `PageMove`.

    Returns:
        The updated cache.

    Raises:
        ValueError: sources and targets are not int32 lists of one length.
    """
    if sources.ndim != 1 or sources.shape != targets.shape:
        raise ValueError(
            f"page_move: sources has shape {sources.shape}, targets {targets.shape}; "
            "expected two lists, one target for each source"
        )
    if sources.dtype != jnp.int32 or targets.dtype != jnp.int32:
        raise ValueError(
            f"page_move: sources are {sources.dtype}, targets {targets.dtype}; both "
            "must be int32"
        )
    return OP(PageMove(kv, sources, targets))
