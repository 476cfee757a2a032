"""Caches of ragged paged attention: how their axes are read."""

import math
from typing import Literal, get_args

from fdjax.kernels.paged import KVCache, PageLayout
from fdjax.notation import Array

type Layout = Literal["interleaved", "beside"]

NAME = "ragged_paged_attention"


def cache_of(
    array: Array, *, num_kv_heads: int, head_dim: int, layout: Layout | None
) -> KVCache:
    """The cache over an array in one of the layouts.

    Raises:
        ValueError: it has another number of axes, or of heads, or less elements than
            a head; it may have either layout; or a token of it holds nothing.
    """
    if array.ndim not in (4, 5):
        raise ValueError(
            f"{NAME}: the cache is {array.shape}; expected [P, Z, 2 Hkv, W], "
            "[P, Z, 2 Hkv / n, n, W] or [P, Z, Hkv / n, n, 2 D]"
        )
    if 0 in array.shape[1:]:
        raise ValueError(
            f"{NAME}: the cache is {array.shape}; give every axis 1 or more: tokens of "
            "a page, heads, and elements of a head"
        )
    _check_layout(array, num_kv_heads, head_dim, layout)
    heads = [*array.shape[2:-1]]
    is_beside = layout == "beside" or (
        layout is None
        and len(heads) == 2
        and math.prod(heads) == _padded(num_kv_heads, heads[1])
        and math.prod(heads) != 2 * num_kv_heads
    )
    if is_beside:
        return KVCache(array, _beside(array, num_kv_heads, head_dim))
    _check_interleaved(array, num_kv_heads, head_dim)
    return KVCache.interleaved(array, head_dim=head_dim)


def _check_interleaved(array: Array, num_kv_heads: int, head_dim: int) -> None:
    halves, width = math.prod(array.shape[2:-1]), array.shape[-1]
    if halves != 2 * num_kv_heads:
        raise ValueError(
            f"{NAME}: the cache {array.shape} has {halves / 2:g} key/value heads, k "
            f"has {num_kv_heads}; expected {2 * num_kv_heads} keys and values a token"
        )
    if width < head_dim:
        raise ValueError(
            f"{NAME}: the cache {array.shape} has {width} elements a head, k has "
            f"{head_dim}; give it as many, or more"
        )


def _check_layout(
    array: Array, num_kv_heads: int, head_dim: int, layout: Layout | None
) -> None:
    known = get_args(Layout.__value__)
    if layout is not None and layout not in known:
        raise ValueError(f"{NAME}: layout is {layout!r}; it is one of {known}")
    heads = [*array.shape[2:-1]]
    if len(heads) != 2:
        if layout == "beside":
            raise ValueError(
                f"{NAME}: the cache is {array.shape}; with keys beside values it is "
                "[P, Z, Hkv / n, n, 2 D]"
            )
        return
    held, padded = math.prod(heads), _padded(num_kv_heads, heads[1])
    if layout == "beside" and held != padded:
        raise ValueError(
            f"{NAME}: the cache {array.shape} has {held} heads, k has {num_kv_heads}, "
            f"padded {padded}"
        )
    is_either = held == padded == 2 * num_kv_heads and array.shape[-1] == 2 * head_dim
    if layout is None and is_either:
        raise ValueError(
            f"{NAME}: the cache {array.shape} of {num_kv_heads} key/value heads of "
            f"{head_dim} may be interleaved, or have keys beside values; say layout="
            '"interleaved" or "beside"'
        )


def _padded(num_kv_heads: int, packing: int) -> int:
    return -(-num_kv_heads // max(packing, 1)) * packing


def _beside(array: Array, num_kv_heads: int, head_dim: int) -> PageLayout:
    """Each head's value in the same 2 D elements as its key."""
    page_size, width = array.shape[1], array.shape[-1]
    if width != 2 * head_dim:
        raise ValueError(
            f"{NAME}: the cache {array.shape} has keys beside values "
            f"in {width} elements, and heads have {head_dim}; expected {2 * head_dim}"
        )
    token = math.prod(array.shape[2:])
    return PageLayout(
        1,
        page_size,
        num_kv_heads,
        head_dim,
        page_stride=page_size * token,
        token_stride=token,
        head_stride=width,
        value_stride=head_dim,
    )
