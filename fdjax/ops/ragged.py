"""Ragged paged attention, version 3: the surface that JAX serving stacks share."""

from typing import Any, Literal, get_args

import jax.numpy as jnp

from fdjax.kernels.paged import PageView
from fdjax.kernels.paged.view import check_width
from fdjax.notation import Array, Float, Int32
from fdjax.ops import calls, ragged_cache
from fdjax.ops.attention import attention
from fdjax.ops.ragged_cache import NAME, Layout

type Mode = Literal["mixed", "decode"]


@calls.named
def ragged_paged_attention(
    q: Float[Array, "T Hq D"],
    k: Float[Array, "T Hkv D"],
    v: Float[Array, "T Hkv D"],
    kv_cache: Float[Array, "P Z ..."],
    kv_lens: Int32[Array, " B"],
    page_indices: Int32[Array, "..."],
    cu_q_lens: Int32[Array, " C"],
    distribution: Int32[Array, " 3"],
    *,
    sm_scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    cu_kv_lens: Int32[Array, " C"] | None = None,
    pages_per_row: int | None = None,
    update_kv_cache: bool = True,
    mode: Mode = "mixed",
    layout: Layout | None = None,
) -> tuple[Float[Array, "T Hq D"], Float[Array, "P Z ..."]]:
    """Writes new keys and values into their pages, and attends to each row's tokens.

    The signature is that of ragged paged attention v3 in sgl-jax, tpu-inference and
    ejkernel; heads of a cache lie K0, V0, K1, V1 and so on. Its cache is read where
    it lies, page by page: blocks of one sparse matrix (FlashInfer, section 3.1). Scales
    of quantised caches, custom masks and attention that is not causal are not taken.
    `jax.vmap` with one cache for all elements copies it for each, into which each
    writes its own keys: give all rows to one call instead.

    Args:
        q: queries, those of row 0 first, then those of row 1, and so on.
        k: keys of the same tokens.
        v: values of the same tokens.
        kv_cache: of one layer: `[P, Z, 2 Hkv / n, n, W]` or `[P, Z, 2 Hkv, W]`, heads
            padded from `D` to `W`; or `[P, Z, Hkv / n, n, 2 D]`, keys beside values,
            `Hkv` padded to a multiple of `n`. Donate it under `jax.jit`, and it is
            updated in place.
        kv_lens: tokens of each row, the new ones among them.
        page_indices: pages of each row: `[B, pages_per_row]`; the same flat; or, with
            `cu_kv_lens`, one row's behind the other's. Tokens that a row has no pages
            for are not written, and their queries give zeros.
        cu_q_lens: where the queries of each row begin, `[B + 1]`.
        distribution: the last of its three numbers says how many of the rows are
            there; the others are not needed.
        sm_scale: factor of the dot products; where it is not positive, no GPU kernel
            serves the call. Numbers, strings and booleans are static: under `jax.jit`
            constants, or named in its `static_argnames`.
        sliding_window: a query sees itself and the `sliding_window - 1` tokens before.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; above 0.
        sinks: of each query head the score of one more token without a value.
        cu_kv_lens: where each row's tokens would begin if all rows' pages followed
            one another, `[B + 1]`: multiples of the page size, to which others are
            rounded up.
        pages_per_row: pages that a row may have; needed with `cu_kv_lens`.
        update_kv_cache: else the keys and values are in the cache already.
        mode: "decode" promises one query a row, in a row's own place of `q`.
        layout: "interleaved" or "beside", as `kv_cache` has keys and values; `None`
            goes by its shape, and refuses what may be either: `[P, Z, 1, 2, 128]` of
            one head of 64.

    Returns:
        Of each query, zeros for those of no row; and the cache.

    Raises:
        ValueError: shapes do not fit together, the dtypes of `q`, `k`, `v` and
            `kv_cache` are not the same floating one, or a number is not finite; or
            `soft_cap` is not above 0, `sliding_window` no whole number, 1 or more,
            `pages_per_row` below 1, or `mode` or `layout` none of theirs.
        TypeError: an argument is of another type, or what is static is traced.
    """
    _check_static(sm_scale, sliding_window, mode)
    sliding_window = calls.window_of(NAME, "sliding_window", sliding_window)
    if pages_per_row is not None:
        pages_per_row = calls.whole_number(NAME, "pages_per_row", pages_per_row)
    update_kv_cache = calls.boolean(NAME, "update_kv_cache", update_kv_cache)
    q, k, v = _tokens(q, k, v)
    kv_cache = calls.array_of(NAME, "kv_cache", kv_cache)
    cache = ragged_cache.cache_of(
        kv_cache, num_kv_heads=k.shape[1], head_dim=k.shape[2], layout=layout
    )
    if not cache.num_pages:
        raise ValueError(
            f"{NAME}: kv_cache is {kv_cache.shape}, which has 0 pages; give it one or "
            "more"
        )
    _check_dtypes(q, k, v, kv_cache)
    kv_lens, page_indices, cu_q_lens, distribution = (
        calls.integers_of(NAME, name, array)
        for name, array in (
            ("kv_lens", kv_lens),
            ("page_indices", page_indices),
            ("cu_q_lens", cu_q_lens),
            ("distribution", distribution),
        )
    )
    num_rows = _num_rows(kv_lens, cu_q_lens, distribution)
    if mode == "decode" and q.shape[0] != num_rows:
        raise ValueError(
            f"{NAME}: {q.shape[0]} queries for {num_rows} rows; mode "
            '"decode" has one a row, "mixed" any number'
        )
    table = _page_table(
        page_indices,
        num_rows=num_rows,
        page_size=cache.page_size,
        cu_kv_lens=cu_kv_lens,
        pages_per_row=pages_per_row,
    )
    if not (q.shape[0] and num_rows):
        # `attention` looks at the other arguments, and has no rows either.
        pages = PageView.decoding(table[:0], kv_lens[:0])
    else:
        pages = _rows(table, kv_lens, cu_q_lens, distribution[2], mode=mode)
        if update_kv_cache:
            slots = pages.slots(q.shape[0], page_size=cache.page_size)
            cache = cache.layer(0).write(slots, k, v)
    out = attention(
        q,
        cache.layer(0),
        pages,
        None,
        sinks,
        scale=sm_scale,
        soft_cap=soft_cap,
        window=sliding_window,
    )
    if pages.num_rows:
        max_tokens = table.shape[1] * cache.page_size
        stands = pages.queries(q.shape[0], max_tokens=max_tokens).position >= 0
        out = jnp.where(stands[:, None, None], out, 0)
    return out, cache.array


def _check_static(sm_scale: Any, sliding_window: Any, mode: Any) -> None:
    """Raises where they are wrong; of `soft_cap` `attention` does."""
    calls.check_number(NAME, "sm_scale", sm_scale)
    modes = get_args(Mode.__value__)
    if mode not in modes:
        raise ValueError(f"{NAME}: mode is {mode!r}; it is one of {', '.join(modes)}")


def _tokens(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array]:
    """A scatter takes one key for all tokens, or keys that lie elsewhere, silently."""
    q = calls.array_of(NAME, "q", q, "T", "Hq", "D")
    k = calls.array_of(NAME, "k", k, "T", "Hkv", "D")
    v = calls.array_of(NAME, "v", v, "T", "Hkv", "D")
    expected = (q.shape[0], k.shape[1], q.shape[2])
    for side, array in (("k", k), ("v", v)):
        if array.shape != expected:
            raise ValueError(
                f"{NAME}: {side} is {array.shape} and q {q.shape}; of the same tokens "
                f"and heads as q and k, {side} must be {expected}"
            )
    for side, array in (("q", q), ("k", k)):
        if 0 in array.shape[1:]:
            raise ValueError(
                f"{NAME}: {side} is {array.shape}; give it 1 head or more, of 1 "
                "element or more"
            )
    return q, k, v


def _check_dtypes(q: Array, k: Array, v: Array, kv_cache: Array) -> None:
    calls.check_kind(NAME, jnp.floating, q=q, k=k, v=v, kv_cache=kv_cache)
    for side, array in (("q", q), ("k", k), ("v", v)):
        if array.dtype != kv_cache.dtype:
            raise ValueError(
                f"{NAME}: {side} is {array.dtype}, kv_cache {kv_cache.dtype}; cast one "
                "to the other's"
            )


def _num_rows(kv_lens: Array, cu_q_lens: Array, distribution: Array) -> int:
    if kv_lens.ndim != 1:
        raise ValueError(f"{NAME}: kv_lens is {kv_lens.shape}; expected [B]")
    num_rows = kv_lens.shape[0]
    if cu_q_lens.shape != (num_rows + 1,):
        raise ValueError(
            f"{NAME}: cu_q_lens is {cu_q_lens.shape} for {num_rows} rows; expected "
            f"[{num_rows + 1}]"
        )
    if distribution.shape != (3,):
        raise ValueError(
            f"{NAME}: distribution is {distribution.shape}; expected (3,), of which "
            "the last number says how many rows are there"
        )
    return num_rows


def _page_table(
    indices: Array,
    *,
    num_rows: int,
    page_size: int,
    cu_kv_lens: Array | None,
    pages_per_row: int | None,
) -> Int32[Array, "B W"]:
    if cu_kv_lens is not None:
        if pages_per_row is None:
            raise ValueError(
                f"{NAME}: cu_kv_lens is given and pages_per_row is None; say how many "
                "pages a row may have"
            )
        cu_kv_lens = calls.integers_of(NAME, "cu_kv_lens", cu_kv_lens)
        if cu_kv_lens.shape != (num_rows + 1,) or indices.ndim != 1:
            raise ValueError(
                f"{NAME}: cu_kv_lens is {cu_kv_lens.shape} and page_indices "
                f"{indices.shape} for {num_rows} rows; expected [{num_rows + 1}], and "
                "pages behind one another, [N]"
            )
        check_width(
            NAME,
            "pages_per_row",
            pages_per_row,
            num_rows=num_rows,
            num_ids=len(indices),
        )
        offsets = -(-cu_kv_lens // page_size)
        return PageView.table_of(indices, offsets, width=pages_per_row)
    if indices.ndim not in (1, 2) or (indices.ndim == 2 and len(indices) != num_rows):
        raise ValueError(
            f"{NAME}: page_indices are {indices.shape} for {num_rows} rows; expected "
            f"[{num_rows}, pages_per_row], or the same flat"
        )
    width = pages_per_row or indices.size // max(num_rows, 1)
    if indices.size != num_rows * width:
        raise ValueError(
            f"{NAME}: page_indices {indices.shape} are not {width} for each of "
            f"{num_rows} rows; give a whole number a row"
        )
    return indices.reshape(num_rows, width)


def _rows(
    table: Array, kv_lens: Array, cu_q_lens: Array, count: Array, *, mode: Mode
) -> PageView:
    """Rows that are not there have no tokens, and begin behind those that are."""
    exists = jnp.arange(len(kv_lens), dtype=jnp.int32) < count
    lengths = jnp.where(exists, kv_lens, 0)
    if mode == "decode":
        return PageView.decoding(table, lengths)
    starts = jnp.where(exists, lengths - (cu_q_lens[1:] - cu_q_lens[:-1]), 0)
    firsts = jnp.where(exists, cu_q_lens[:-1], cu_q_lens[count])
    return PageView(table, lengths, starts, firsts)
