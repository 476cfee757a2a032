"""Greedy decoding of a ragged batch with the pure functions of `fdjax.generate.steps`.

Pages are shuffled and start out as NaN, the table is wider than any row needs, and a
row's absent pages have an id past the end: what an engine would show the functions at
its worst.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate import steps
from fdjax.kernels.paged import KVCache
from fdjax.models.decoder import Decoder

_SPARE_PAGES = 3

_score = jax.jit(steps.score)


@jax.jit
def _decode(
    model: Decoder,
    kv: KVCache,
    tokens: jax.Array,
    lengths: jax.Array,
    page_table: jax.Array,
) -> tuple[jax.Array, KVCache]:
    logits, kv = steps.decode(model, kv, tokens, lengths, page_table)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), kv


def greedy(
    model: Decoder,
    prompts: np.ndarray,
    lengths: np.ndarray,
    *,
    new_tokens: int,
    page_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores the prompts `[B, S]` and continues all of them together.

    Returns:
        Logits of every prompt token, float32 `[T, V]` with `T = sum(lengths)`, rows
        one after another; and the greedy continuations, int32 `[B, new_tokens]`.
    """
    kv, page_table = _allocate(
        model, lengths.astype(np.int64) + new_tokens, page_size=page_size
    )
    logits, kv = _score(
        model, kv, jnp.asarray(prompts), jnp.asarray(lengths), page_table
    )
    rows = np.arange(len(lengths))
    last = logits[rows, lengths - 1]
    token = jnp.argmax(last, axis=-1).astype(jnp.int32)
    tokens = [token]
    for step in range(new_tokens - 1):
        token, kv = _decode(
            model, kv, token, jnp.asarray(lengths + step, jnp.int32), page_table
        )
        tokens.append(token)
    valid = np.arange(prompts.shape[1]) < lengths[:, None]
    return np.asarray(logits)[valid], np.stack([np.asarray(t) for t in tokens], axis=1)


def _allocate(
    model: Decoder, totals: np.ndarray, *, page_size: int
) -> tuple[KVCache, jax.Array]:
    """NaN pages, and a table that gives every row its own pages in random order."""
    needed = -(-totals // page_size)
    layout = model.config.kv_layout(
        num_pages=int(needed.sum()) + _SPARE_PAGES,
        page_size=page_size,
        dtype=model.embed.weight.get_value().dtype,
    )
    pages = np.random.default_rng(0).permutation(layout.num_pages)
    table = np.full((len(totals), int(needed.max()) + 1), layout.num_pages, np.int32)
    for row, count in enumerate(needed):
        start = int(needed[:row].sum())
        table[row, :count] = pages[start : start + count]
    cache = layout.allocate()
    left_behind = cache.with_array(jnp.full_like(cache.array, jnp.nan))
    return left_behind, jnp.asarray(table)
