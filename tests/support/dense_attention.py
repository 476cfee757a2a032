"""Attention over plain arrays, a query at a time, in float64 NumPy."""

import numpy as np


def dense_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    start: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """One sequence: q `[S, Hq, D]` from position `start`, k and v `[T, Hkv, D]`."""
    num_queries, num_heads, _ = q.shape
    group = num_heads // k.shape[1]
    out = np.zeros(q.shape, np.float64)
    for i in range(num_queries):
        position = start + i
        first = 0 if window is None else max(0, position - window + 1)
        seen = slice(first, position + 1)
        for head in range(num_heads):
            scores = k[seen, head // group].astype(np.float64) @ q[i, head] * scale
            if soft_cap is not None:
                scores = soft_cap * np.tanh(scores / soft_cap)
            if slopes is not None:
                scores += slopes[head] * (np.arange(first, position + 1) - position)
            sink = -np.inf if sinks is None else sinks[head]
            highest = max(scores.max(), sink)
            weights = np.exp(scores - highest)
            total = weights.sum() + np.exp(sink - highest)
            out[i, head] = weights / total @ v[seen, head // group]
    return out


def scatter_pages(
    sequences: list[tuple[np.ndarray, np.ndarray]],
    *,
    num_pages: int,
    page_size: int,
    num_layers: int,
    layer: int,
    width: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Puts sequences of keys and values into random pages; the rest is NaN.

    Returns:
        The KV array `[P, L, 2, Z, Hkv, D]` and the page table `[B, W]`, whose absent
        pages are `P`.
    """
    _, num_kv_heads, head_dim = sequences[0][0].shape
    shape = (num_pages, num_layers, 2, page_size, num_kv_heads, head_dim)
    kv = np.full(shape, np.nan, np.float32)
    table = np.full((len(sequences), width), num_pages, np.int32)
    free = iter(np.random.default_rng(seed).permutation(num_pages))
    for row, (k, v) in enumerate(sequences):
        for place, at in enumerate(range(0, len(k), page_size)):
            page = int(next(free))
            table[row, place] = page
            held = slice(at, min(at + page_size, len(k)))
            kv[page, layer, 0, : held.stop - at] = k[held]
            kv[page, layer, 1, : held.stop - at] = v[held]
    return kv, table
