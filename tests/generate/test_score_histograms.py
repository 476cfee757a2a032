"""Histograms of attention scores against the scores, and what decoding counts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import UnifiedMax
from fdjax.generate import score_histograms
from fdjax.generate.score_histograms import (
    BINS_PER_UNIT,
    LIMIT,
    NUM_BINS,
    ScoreHistograms,
    count_scores,
)
from fdjax.layers import prefill_batch
from fdjax.models import Decoder, load
from tests.support.engines import FIXTURES, layout_of, tiny_model

PAGE_SIZE, LENGTHS = 8, (21, 5, 0)
PADDED = 24
WIDTH = PADDED // PAGE_SIZE
EDGES = np.arange(NUM_BINS + 1) / BINS_PER_UNIT - LIMIT


def texts(model: Decoder) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, lengths and pages of three rows, the last one empty."""
    random = np.random.default_rng(0)
    vocabulary = model.config.embedding.vocab_size
    tokens = random.integers(0, vocabulary, (3, PADDED)).astype(np.int32)
    table = random.permutation(3 * WIDTH).reshape(3, WIDTH).astype(np.int32)
    return jnp.asarray(tokens), jnp.asarray(LENGTHS, jnp.int32), jnp.asarray(table)


def counted(model: Decoder) -> ScoreHistograms:
    config = model.config
    _, histograms = jax.jit(count_scores)(
        model,
        layout_of(model, num_pages=3 * WIDTH, page_size=PAGE_SIZE).allocate(),
        ScoreHistograms.zeros(config.num_layers, config.num_heads),
        *texts(model),
    )
    return histograms


@functools.cache
def llama() -> ScoreHistograms:
    return counted(tiny_model())


def first_layer_scores(row: int) -> np.ndarray:
    """Scores of every query and key before it, `[Hq, S, S]`, -inf where unseen."""
    model = tiny_model()
    tokens, lengths, table = texts(model)
    batch = prefill_batch(tokens, lengths, table, page_size=PAGE_SIZE)
    kv = layout_of(model, num_pages=3 * WIDTH, page_size=PAGE_SIZE).allocate()
    layer = model.layers[0]
    x = layer.attention_norm(model.embedded(batch))
    q, kv = layer.attention.project(x, kv, batch)
    spec, length = model.config.layers[0].attention, LENGTHS[row]
    q = np.asarray(q).reshape(3, PADDED, spec.num_heads, -1)[row, :length]
    pages = np.asarray(kv.array)[np.asarray(table)[row], 0, 0]
    keys = pages.reshape(PADDED, spec.num_kv_heads, -1)[:length]
    keys = keys.repeat(spec.num_heads // spec.num_kv_heads, axis=1)
    scores = np.einsum("shd,thd->hst", q, keys) * spec.scale
    return np.where(np.tri(length, dtype=bool), scores, -np.inf)


def near(actual: np.ndarray, expected: np.ndarray) -> bool:
    """The same counts, but for a few that rounding put into the next bin."""
    moved = np.abs(np.cumsum(actual, axis=-1) - np.cumsum(expected, axis=-1))
    return moved.max() <= 2


def test_the_first_layer_is_counted_score_by_score():
    expected = np.zeros((2, tiny_model().config.num_heads, NUM_BINS), int)
    for row in (0, 1):
        for head, scores in enumerate(first_layer_scores(row)):
            seen = scores[np.isfinite(scores)]
            expected[0, head] += np.histogram(seen, EDGES)[0]
            expected[1, head] += np.histogram(scores.max(axis=-1), EDGES)[0]
    assert near(np.asarray(llama().scores[0]), expected[0])
    assert near(np.asarray(llama().row_maxima[0]), expected[1])


def test_every_pair_is_counted_once():
    pairs = sum(n * (n + 1) // 2 for n in LENGTHS)
    assert np.asarray(llama().scores.sum(axis=-1) == pairs).all()
    assert np.asarray(llama().row_maxima.sum(axis=-1) == sum(LENGTHS)).all()


def test_counts_are_added_to():
    once, model = llama(), tiny_model()
    _, twice = jax.jit(count_scores)(
        model,
        layout_of(model, num_pages=3 * WIDTH, page_size=PAGE_SIZE).allocate(),
        once,
        *texts(model),
    )
    np.testing.assert_array_equal(twice.scores, 2 * once.scores)
    np.testing.assert_array_equal(twice.row_maxima, 2 * once.row_maxima)


def test_small_blocks_count_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(score_histograms, "BLOCK_QUERIES", 7)
    assert near(np.asarray(counted(tiny_model()).scores), np.asarray(llama().scores))


@pytest.mark.parametrize("name", ["llama", "bloom", "gemma2", "mistral_window"])
def test_what_decoding_recomputes_is_foretold(name: str):
    """ALiBi, soft caps and windows are in the scores, as they are in decoding."""
    model = load(FIXTURES / name, dtype=jnp.float32)
    row_maxima = np.asarray(counted(model).row_maxima)
    # A bound at an edge of the bins, in the midst of what occurs.
    total = row_maxima.sum(axis=(0, 1)).cumsum()
    middle = int(np.argmax(total > total[-1] // 2))
    foretold = row_maxima[..., middle:].sum(axis=(1, 2))
    bounds = UnifiedMax(float(EDGES[middle]) - 1.0, -60.0, 1.0)
    found = recomputed_by_decoding(name, bounds)
    assert 0 < foretold.sum() < total[-1]
    assert np.abs(found - foretold).max() <= 1


def recomputed_by_decoding(name: str, bounds: UnifiedMax) -> np.ndarray:
    """Query heads that decoding all texts token by token computes again, by layer."""
    model = load(FIXTURES / name, dtype=jnp.float32)
    config = dataclasses.replace(model.config, unified=bounds)
    model = load(FIXTURES / name, dtype=jnp.float32, config=config)
    tokens, _, table = texts(model)
    kv = layout_of(model, num_pages=3 * WIDTH, page_size=PAGE_SIZE).allocate()
    step = jax.jit(Decoder.decode, donate_argnums=1)
    total = np.zeros(config.num_layers, int)
    for position in range(max(LENGTHS)):
        before = jnp.full(3, position, jnp.int32)
        _, kv, counts = step(model, kv, tokens[:, position], before, table)
        total += np.asarray(counts)[:, position < np.array(LENGTHS)].sum(axis=1)
    return total
