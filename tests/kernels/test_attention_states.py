"""What queries find among keys: in one call, in parts, and along a tree of drafts."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels.attention_states import (
    AttentionState,
    KeyRange,
    attention_states,
    merge_states,
)
from fdjax.kernels.paged import KVCache, PageView
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.numerics import assert_close

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
PAGE_SIZE, WIDTH, LAYER = 4, 12, 1
SCALE = 0.3
SLOPES = np.linspace(0.1, 0.9, HEADS)
SINKS = np.linspace(-1.0, 2.0, HEADS)
RUN = jax.jit(attention_states, static_argnames=("scale", "soft_cap", "window"))
MERGE = jax.jit(merge_states)
MASKS: list[dict[str, Any]] = [
    {},
    {"window": 3},
    {"soft_cap": 5.0},
    {"slopes": SLOPES},
    {"sinks": SINKS},
    {"window": 5, "soft_cap": 4.0, "slopes": SLOPES, "sinks": SINKS},
]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows in pages, and the queries of their new tokens, packed, with padding."""

    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    q: np.ndarray
    kv: KVCache
    pages: PageView
    sequences: list[tuple[np.ndarray, np.ndarray]]

    def states(self, **options: Any) -> AttentionState:
        for name in {"slopes", "sinks"} & set(options):
            options[name] = jnp.asarray(options[name], jnp.float32)
        layer = self.kv.layer(LAYER)
        return RUN(jnp.asarray(self.q), layer, self.pages, scale=SCALE, **options)

    def places(self) -> list[tuple[int, int]]:
        """Row and position of each query that stands for a token."""
        rows = zip(self.starts, self.lengths, strict=True)
        return [(r, at) for r, (s, n) in enumerate(rows) for at in range(s, n)]


def drawn(lengths: tuple[int, ...], starts: tuple[int, ...], *, seed: int = 1) -> Batch:
    random = np.random.default_rng(seed)
    heads = (KV_HEADS, HEAD_DIM)
    sequences = [
        (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
        for n in lengths
    ]
    kv, table = scatter_pages(
        sequences,
        num_pages=WIDTH * len(lengths) + 3,
        page_size=PAGE_SIZE,
        num_layers=2,
        layer=LAYER,
        width=WIDTH,
        seed=seed,
    )
    count = sum(n - s for n, s in zip(lengths, starts, strict=True))
    q = np.full((count + 2, HEADS, HEAD_DIM), np.nan, np.float32)
    q[:count] = random.normal(size=(count, HEADS, HEAD_DIM))
    view = PageView.packed(
        *(jnp.asarray(x, jnp.int32) for x in (table, lengths, starts))
    )
    cache = KVCache.page_major(jnp.asarray(kv))
    return Batch(lengths, starts, q, cache, view, sequences)


def path(
    batch: Batch, row: int, slots: list[int], q: np.ndarray, **options: Any
) -> Any:
    """What a query finds at the end of a sequence of these slots of a row."""
    k, v = (side[slots] for side in batch.sequences[row])
    start = len(slots) - 1
    return dense_attention(q[None], k, v, start=start, scale=SCALE, **options)[0]


def log_sum(batch: Batch, row: int, at: int, q: np.ndarray) -> np.ndarray:
    """Of a query without masks but causality."""
    k = np.repeat(batch.sequences[row][0][: at + 1], HEADS // KV_HEADS, axis=1)
    scores = np.einsum("hd,thd->ht", q.astype(np.float64), k) * SCALE
    return np.log(np.sum(np.exp(scores), axis=1))


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: "+".join(mask) or "causal")
def test_decoding_drafts_and_chunks_in_one_call(mask: dict[str, Any]):
    """One query, a few, all of a row, and none."""
    batch = drawn((17, 9, 6, 5, 0), (16, 5, 0, 5, 0))
    state = batch.states(**mask)
    for query, (row, at) in enumerate(batch.places()):
        expected = path(batch, row, list(range(at + 1)), batch.q[query], **mask)
        assert_close(state.output[query], expected, reduction=64)


def test_the_logarithm_of_the_sum():
    batch = drawn((17, 9), (15, 0))
    state = batch.states()
    for query, (row, at) in enumerate(batch.places()):
        expected = log_sum(batch, row, at, batch.q[query])
        assert_close(state.log_sum[query], expected, reduction=64)


def test_padding_finds_nothing():
    state = drawn((3,), (1,)).states()
    assert (state.output[2:] == 0).all()
    assert (state.log_sum[2:] == -jnp.inf).all()


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), max_size=3),
    mask=st.sampled_from(MASKS),
    seed=st.integers(0, 5),
)
def test_parts_join_to_the_whole(
    cuts: list[list[int]], mask: dict[str, Any], seed: int
):
    """Wherever each row is cut; sinks belong to the first part."""
    batch = drawn((17, 9, 0), (14, 0, 0), seed=seed)
    bounds = np.sort(np.array([[0, 0, 0], *cuts, [99, 99, 99]], np.int32), axis=0)
    others = {name: value for name, value in mask.items() if name != "sinks"}
    states = [
        batch.states(
            **(others if index else mask),
            keys=KeyRange(jnp.asarray(first), jnp.asarray(end)),
        )
        for index, (first, end) in enumerate(itertools.pairwise(bounds))
    ]
    merged, whole, count = (
        MERGE(states),
        batch.states(**mask),
        len(batch.places()),
    )
    assert_close(merged.output[:count], whole.output[:count], reduction=64)
    assert_close(merged.log_sum[:count], whole.log_sum[:count], reduction=64)


def test_a_prefix_that_rows_share_is_a_part():
    """Its pages are the same ids in both rows."""
    batch = drawn((11, 11), (10, 10))
    table = batch.pages.page_table.at[1, :2].set(batch.pages.page_table[0, :2])
    batch = dataclasses.replace(
        batch, pages=dataclasses.replace(batch.pages, page_table=table)
    )
    shared, end = jnp.full(2, 2 * PAGE_SIZE), jnp.full(2, 99)
    parts = [
        batch.states(keys=KeyRange(jnp.zeros(2, jnp.int32), shared)),
        batch.states(keys=KeyRange(shared, end)),
    ]
    for name, side in enumerate(batch.sequences[1]):
        side[:8] = batch.sequences[0][name][:8]
    merged = MERGE(parts)
    for query, (row, at) in enumerate(batch.places()):
        expected = path(batch, row, list(range(at + 1)), batch.q[query])
        assert_close(merged.output[query], expected, reduction=64)


def random_tree(count: int, random: np.random.Generator) -> list[list[int]]:
    """Of each draft the drafts on its way from the root, itself the last."""
    ways: list[list[int]] = []
    for draft in range(count):
        parent = int(random.integers(-1, draft)) if draft else -1
        ways.append([*(ways[parent] if parent >= 0 else []), draft])
    return ways


def bits(ways: list[list[int]], *, words: int, itself: bool) -> np.ndarray:
    """A draft sees itself whatever its own bit says."""
    made = np.zeros((len(ways), words), np.uint32)
    for draft, way in enumerate(ways):
        for seen in way if itself else way[:-1]:
            made[draft, seen // 32] |= np.uint32(1 << seen % 32)
    return made


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: "+".join(mask) or "causal")
def test_a_draft_sees_its_ancestors(mask: dict[str, Any], itself: bool):
    """As if they were a sequence; beside a row without a tree. More than 32 drafts."""
    random = np.random.default_rng(len(mask))
    batch = drawn((45, 9, 12), (5, 7, 5))
    trees = [random_tree(40, random), [[0], [0, 1]], random_tree(7, random)]
    padding = np.zeros((2, 2), np.uint32)
    words = [
        bits(trees[0], words=2, itself=itself),
        np.full((2, 2), 2**32 - 1, np.uint32),
        bits(trees[2], words=2, itself=itself),
        padding,
    ]
    state = batch.states(**mask, tree=jnp.asarray(np.concatenate(words)))
    for query, (row, at) in enumerate(batch.places()):
        start = batch.starts[row]
        way = [start + draft for draft in trees[row][at - start]]
        expected = path(batch, row, [*range(start), *way], batch.q[query], **mask)
        assert_close(state.output[query], expected, reduction=64)


def test_tokens_past_the_bits_of_a_tree_are_seen():
    batch = drawn((40,), (2,))
    tree = np.full((40, 1), 2**32 - 1, np.uint32)
    plain, state = batch.states(), batch.states(tree=jnp.asarray(tree), slopes=SLOPES)
    with_slopes = batch.states(slopes=SLOPES)
    assert_close(state.output, with_slopes.output, reduction=64)
    assert not np.allclose(state.output, plain.output)


def test_what_found_nothing_may_be_nan():
    found = AttentionState(jnp.ones((1, 2, 3)), jnp.zeros((1, 2)))
    nothing = AttentionState(jnp.full((1, 2, 3), jnp.nan), jnp.full((1, 2), -jnp.inf))
    for states in ([found, nothing], [nothing, found], [nothing, found, nothing]):
        merged = MERGE(states)
        assert (merged.output == 1).all()
        assert (merged.log_sum == 0).all()
    merged = MERGE([nothing, nothing])
    assert (merged.output == 0).all()
    assert (merged.log_sum == -jnp.inf).all()


def test_sums_that_overflow_join():
    far = [
        AttentionState(jnp.full((1, 1, 2), value), jnp.full((1, 1), value))
        for value in (500.0, 1000.0, 1000.0, -1000.0)
    ]
    merged = merge_states(far)
    assert (merged.output == 1000).all()
    assert_close(merged.log_sum, np.array([[1000 + np.log(2)]]), reduction=4)


def test_errors():
    batch = drawn((5, 3), (3, 1))
    one = AttentionState(jnp.ones((1, 2, 3)), jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match="one or more"):
        merge_states([])
    with pytest.raises(ValueError, match=r"\(2, 2, 3\)"):
        other = AttentionState(jnp.ones((2, 2, 3)), jnp.zeros((2, 2)))
        merge_states([one, other])
    with pytest.raises(ValueError, match=r"expected \[\.\.\., Hq, D\]"):
        merge_states([AttentionState(jnp.ones((1, 2, 3)), jnp.zeros(2))])
    with pytest.raises(ValueError, match=r"the tree is \(5, 1\); expected \[6, N\]"):
        batch.states(tree=jnp.zeros((5, 1), jnp.uint32))
    with pytest.raises(ValueError, match=r"keys of \(3,\); expected \[2\]"):
        batch.states(keys=KeyRange(jnp.zeros(2, jnp.int32), jnp.zeros(3, jnp.int32)))
    with pytest.raises(ValueError, match="6 queries for 4 rows"):
        table = jnp.zeros((4, 2), jnp.int32)
        attention_states(
            jnp.asarray(batch.q),
            batch.kv.layer(0),
            PageView.decoding(table, jnp.ones(4, jnp.int32)),
            scale=1.0,
        )
