"""Prefixes that rows share: who is found to share what, and what is done for them."""

import dataclasses
import itertools
import time
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels.attention_states import KeyRange, attention_states, merge_states
from fdjax.kernels.decode_attention import OP, DecodeAttention, UnifiedMax, reference
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec, SharedPrefixes
from fdjax.kernels.shared_prefix import Group, find_groups, plan_prefixes
from fdjax.kernels.shared_prefix.table import Worth
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

PAGE = 16


@dataclasses.dataclass(frozen=True)
class Tables:
    """Rows of a batch: their pages, and how long they are."""

    table: np.ndarray[Any, Any]
    lengths: tuple[int, ...]


def tables(*rows: tuple[str, int, int], width: int, seed: int = 0) -> Tables:
    """Rows that share pages.

    Args:
        rows: a path of names with slashes between, pages that each name on the path
            stands for, and tokens of the row's own.
        width: of the page table.
        seed: for the ids.
    """
    random = np.random.default_rng(seed)
    ids = iter(random.permutation(20_000).tolist())
    named: dict[str, list[int]] = {}
    table = np.full((len(rows), width), 20_000, np.int32)
    lengths: list[int] = []
    for row, (path, pages, own) in enumerate(rows):
        parts = path.split("/") if path else []
        held: list[int] = []
        for depth in range(len(parts)):
            name = "/".join(parts[: depth + 1])
            if name not in named:
                named[name] = [next(ids) for _ in range(pages)]
            held += named[name]
        length = len(held) * PAGE + own
        held += [next(ids) for _ in range(-(-own // PAGE))]
        table[row, : len(held)] = held
        lengths.append(length)
    return Tables(table, tuple(lengths))


def found(drawn: Tables, least: int = 1) -> tuple[Group, ...]:
    worth = Worth(of_group=1024, of_batch=least)
    return find_groups(drawn.table, drawn.lengths, page_size=PAGE, worth=worth)


def test_rows_with_the_same_leading_pages_are_a_group():
    drawn = tables(
        ("a", 100, 5), ("", 0, 900), ("a", 100, 40), ("a", 100, 1), width=110
    )
    assert found(drawn) == (Group((0, 2, 3), 0, 1600, 0),)


def test_groups_of_different_sizes_stand_beside_each_other():
    drawn = tables(("a", 70, 9), ("b", 80, 9), ("a", 70, 9), ("b", 80, 3), width=90)
    assert set(found(drawn)) == {
        Group((0, 2), 0, 1120, 0),
        Group((1, 3), 0, 1280, 0),
    }


def test_a_group_may_lie_within_another_one():
    drawn = tables(
        ("a/x", 80, 5), ("a/y", 80, 5), ("a/x", 80, 7), ("a/y", 80, 8), width=170
    )
    outer, *inner = sorted(found(drawn), key=lambda group: group.level)
    assert (outer.begin, outer.end, set(outer.rows)) == (0, 1280, {0, 1, 2, 3})
    assert {(g.rows, g.begin, g.end) for g in inner} == {
        ((0, 2), 1280, 2560),
        ((1, 3), 1280, 2560),
    }


def test_the_page_of_the_last_token_is_never_shared():
    pages = np.tile(np.arange(100, dtype=np.int32), (3, 1))
    any_saved = Worth(of_group=1024, of_batch=1)
    (group,) = find_groups(pages, [1600, 1600, 1590], page_size=PAGE, worth=any_saved)
    assert group.end == 1584
    assert not find_groups(pages, [16, 16, 0], page_size=PAGE, worth=any_saved)


def test_where_little_would_be_saved_there_are_no_groups():
    drawn = tables(("a", 70, 9), ("a", 70, 9), width=80)
    assert found(drawn, least=1120) == (Group((0, 1), 0, 1120, 0),)
    assert found(drawn, least=1121) == ()
    short = tables(("a", 20, 9), ("a", 20, 9), width=80)
    assert found(short) == (), "320 tokens of one group"


def _most_saved(rows: list[list[int]], begin: int, levels: int, least: int) -> int:
    """Of pages, by trying every way: as one group from `begin` on, or each part alone.

    Rows are the same up to page `begin`, and each has all its pages to share.
    """
    if len(rows) < 2 or not levels:
        return 0
    same = itertools.takewhile(
        lambda pages: len({*pages}) == 1, zip(*rows, strict=False)
    )
    end = len([*same])
    parts: dict[int, list[list[int]]] = {}
    for row in rows:
        if len(row) > end:
            parts.setdefault(row[end], []).append(row)
    apart = sum(_most_saved(part, begin, levels, least) for part in parts.values())
    if (own := (len(rows) - 1) * (end - begin)) < max(least, 1):
        return apart
    within = (_most_saved(part, end, levels - 1, least) for part in parts.values())
    return max(apart, own + sum(within))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), max_size=12),
    st.integers(0, 8),
    st.randoms(),
)
def test_no_other_groups_save_more(rows: list[list[int]], least: int, random: Random):
    rows += [[*row[: random.randint(1, 7)], random.randint(0, 2)] for row in rows]
    width = max(map(len, rows), default=0) + 1
    table = np.array([row + [9] * (width - len(row)) for row in rows], np.int32)
    lengths = [len(row) + 1 for row in rows]
    worth = Worth(of_group=least, of_batch=0)
    groups = find_groups(
        table.reshape(len(rows), width), lengths, page_size=1, worth=worth
    )
    assert sum(group.saved for group in groups) == _most_saved(rows, 0, 2, least)
    for group in groups:
        shared = table[list(group.rows), group.begin : group.end]
        assert np.all(shared == shared[0]) and group.saved >= least
        outer = [
            g for g in groups if g.level < group.level and {*group.rows} <= {*g.rows}
        ]
        assert len(outer) == group.level and all(g.end == group.begin for g in outer)


def test_a_tree_of_any_depth_takes_a_moment():
    """Each of 1,200 rows leaves the others a page later: no tree is deeper."""
    count = 1200
    table = np.arange(count * (count + 1), dtype=np.int32).reshape(count, -1) + 9999
    for row in range(count):
        table[row, : row + 1] = np.arange(row + 1)
    lengths = [(row + 1) * PAGE + 1 for row in range(count)]
    began = time.process_time()
    groups = find_groups(table, lengths, page_size=PAGE, worth=Worth(of_batch=1))
    assert time.process_time() - began < 2.0, "30 ms; a row by itself took minutes"
    assert [group.level for group in groups] == [0, 1]


def test_rows_of_nothing_are_in_no_group():
    empty = np.zeros((2, 0), np.int32)
    assert find_groups(empty, (0, 0), page_size=PAGE) == ()
    assert find_groups(empty[:0], (), page_size=PAGE) == ()


def test_rows_longer_than_their_pages_are_refused():
    drawn = tables(("a", 3, 5), ("a", 3, 5), width=4)
    with pytest.raises(ValueError, match=r"row 1 has 65 tokens, .* room for 64"):
        find_groups(drawn.table, (53, 65), page_size=PAGE)


@st.composite
def _trees(draw: st.DrawFn) -> Tables:
    paths = st.sampled_from(["", "a", "a/x", "a/y", "a/x/q", "b", "b/x", "c"])
    row = st.tuples(paths, st.just(0), st.integers(1, 40))
    pages = draw(st.sampled_from([1, 30, 90]))
    rows = draw(st.lists(row, min_size=1, max_size=24))
    return tables(*((path, pages, own) for path, _, own in rows), width=290)


@settings(deadline=None, max_examples=80)
@given(_trees(), st.sampled_from([(8, 4), (2, 1), (1, 16), (4, 7)]))
def test_every_shared_key_of_every_row_is_read_in_one_piece(
    drawn: Tables, heads: tuple[int, int]
):
    kv_heads, group = heads
    rows = len(drawn.lengths)
    prefixes = plan_prefixes(
        found(drawn), rows=rows, num_kv_heads=kv_heads, group=group
    )
    order, parts = np.asarray(prefixes.order), np.asarray(prefixes.parts)
    assert sorted(order.tolist()) == list(range(rows))
    work = np.asarray(prefixes.work)
    by_record = {int(piece[6]): piece for piece in work if piece[3]}
    assert len(by_record) <= prefixes.num_records
    for place, row in enumerate(order):
        covered: list[tuple[int, int]] = []
        for record, count, token, _ in parts[:, place]:
            if record < 0:
                break
            for piece in (by_record[int(record) + i] for i in range(count)):
                leader, first, position, tokens, begin, end = piece[:6]
                assert first + token == place and token < tokens
                assert position >= end, "every query sees every key"
                pages = slice(begin // PAGE, end // PAGE)
                assert np.array_equal(
                    drawn.table[row, pages], drawn.table[leader, pages]
                )
                covered.append((int(begin), int(end)))
        ends = [0, *(end for _, end in covered)]
        assert [begin for begin, _ in covered] == ends[:-1]
        assert ends[-1] == prefixes.tokens[row] < max(drawn.lengths[row], 1)
        assert ends[-1] % PAGE == 0


def test_groups_without_room_are_left_out_with_those_within_them():
    many = [(f"a{i}", 70, 3) for i in range(60) for _ in range(2)]
    drawn = tables(*many, width=80)
    prefixes = plan_prefixes(found(drawn), rows=120, num_kv_heads=32, group=1)
    grouped = int(np.sum(np.asarray(prefixes.tokens) > 0))
    assert 0 < grouped < 120 and grouped % 2 == 0


def call_of(
    drawn: Tables, *, dtype: Any, heads: tuple[int, int, int], **scores: Any
) -> DecodeAttention:
    """Over noise; slots that hold no token, and pages of no row, are NaN."""
    num_heads, kv_heads, head_dim = heads
    random = np.random.default_rng(1)
    used = sorted({int(p) for p in drawn.table.ravel() if p < 20_000})
    ids = {page: i for i, page in enumerate(used)}
    kv = np.full((len(used) + 2, 2, 2, PAGE, kv_heads, head_dim), np.nan, np.float32)
    table = np.full(drawn.table.shape, len(used) + 2, np.int32)
    for row, length in enumerate(drawn.lengths):
        for at in range(-(-length // PAGE)):
            page = table[row, at] = ids[int(drawn.table[row, at])]
            slots = min(PAGE, length - at * PAGE)
            if np.isnan(kv[page, 1, 0, 0, 0, 0]):
                size = (2, slots, kv_heads, head_dim)
                kv[page, 1, :, :slots] = random.normal(size=size)
    q = random.normal(size=(len(drawn.lengths), num_heads, head_dim))
    sinks = jnp.linspace(-1.0, 2.0, num_heads) if scores.pop("sinks", False) else None
    groups = found(drawn)
    assert groups
    return DecodeAttention(
        jnp.asarray(q, dtype),
        KVCache.page_major(jnp.asarray(kv, dtype)).layer(1),
        PageView.decoding(
            jnp.asarray(table),
            jnp.asarray(drawn.lengths, jnp.int32),
            plan_prefixes(
                groups, rows=len(q), num_kv_heads=kv_heads, group=num_heads // kv_heads
            ),
        ),
        ScoreSpec(None, head_dim**-0.5, scores.get("soft_cap"), None, sinks),
        unified=scores.get("unified"),
    )


def random_tree(seed: int) -> Tables:
    """Rows of any length on any path, of which at least two share something."""
    random = np.random.default_rng(seed)
    paths = ["", "a", "a/x", "a/x/q", "a/y", "b", "b/x"]
    pages = {name: int(random.integers(1, 60)) for name in "axyqb"}
    own = [1, 15, 16, 17, 64, 128, *random.integers(1, 900, size=6)]
    chosen = ["a", "a", *random.choice(paths, size=int(random.integers(1, 30)))]
    random.shuffle(chosen)
    rows = [(path, pages[path[-1:] or "a"], int(random.choice(own))) for path in chosen]
    return tables(*rows, width=240, seed=seed)


# Kept small: the definition reads all pages of every row.
TREES = {
    "one": tables(*[("a", 300, 9)] * 8, width=310),
    "some": tables(
        ("a", 70, 9),
        ("", 0, 300),
        ("a", 70, 1),
        ("b", 90, 17),
        ("b", 90, 900),
        width=150,
    ),
    "nested": tables(
        *[("a/x", 70, 5), ("a/y", 70, 33), ("a", 70, 700), ("a/x/q", 70, 1)] * 3,
        width=230,
    ),
    "more_than_a_tile": tables(*[("a", 65, 3)] * 70, ("", 0, 0), width=70),
    **{f"random_{seed}": random_tree(seed) for seed in range(4)},
}


@pytest.mark.parametrize("name", ["some", "nested", "random_0", "random_1"])
def test_prefixes_and_own_keys_together_are_all_keys(name: str):
    call = call_of(TREES[name], dtype=jnp.float32, heads=(4, 2, 16))
    prefixes = call.pages.prefixes
    assert isinstance(prefixes, SharedPrefixes)

    def part(first: jax.Array, end: jax.Array) -> Any:
        return attention_states(
            call.q,
            call.kv,
            call.pages,
            scale=call.scores.scale,
            keys=KeyRange(first, end),
        )

    zeros = jnp.zeros_like(prefixes.tokens)
    bounds = (zeros, prefixes.tokens, call.pages.lengths)
    parts = [jax.jit(part)(*pair) for pair in itertools.pairwise(bounds)]
    merged = merge_states(parts)
    expected, _ = jax.jit(reference.decode_attention)(call)
    assert_close(merged.output, expected, reduction=64)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [
        ((8, 2, 128), jnp.bfloat16),
        ((4, 2, 64), jnp.float16),
        ((2, 2, 256), jnp.bfloat16),
        ((14, 2, 128), jnp.bfloat16),
        ((3, 3, 96), jnp.bfloat16),
    ],
    ids=["128", "64", "256", "group_7", "no_copy_engine"],
)
@pytest.mark.parametrize("name", sorted(TREES))
def test_the_kernel_equals_the_definition(
    name: str, heads: tuple[int, int, int], dtype: Any
):
    skip_without("shared_prefix", "gpu")
    call = call_of(TREES[name], dtype=dtype, heads=heads)
    with OP.using("cuda"):
        actual, _ = jax.jit(OP)(call)
        again, _ = jax.jit(OP)(call)
    expected, _ = jax.jit(reference.decode_attention)(call)
    exists = np.asarray(call.pages.lengths) > 0
    assert_close(actual[exists], expected[exists], reduction=64)
    assert np.array_equal(actual, again)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "scores",
    [
        {"sinks": True},
        {"soft_cap": 5.0},
        {"unified": UnifiedMax(1.0, -40.0, 30.0)},
        {"unified": UnifiedMax(40.0, -3.0, 3.0)},
    ],
    ids=["sinks", "soft_cap", "unified", "unified_outside"],
)
def test_the_kernel_scores_as_the_definition(scores: dict[str, Any]):
    skip_without("shared_prefix", "gpu")
    call = call_of(TREES["nested"], dtype=jnp.bfloat16, heads=(8, 2, 128), **scores)
    with OP.using("cuda"):
        actual, _ = jax.jit(OP)(call)
    expected, _ = jax.jit(reference.decode_attention)(call)
    assert_close(actual, expected, reduction=64)
