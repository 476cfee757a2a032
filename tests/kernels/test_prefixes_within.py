"""What rows share, made for another batch or by hand: refused, or kept within it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops
from fdjax.kernels.paged import KVCache, PageView, SharedPrefixes
from fdjax.kernels.shared_prefix import plan_prefixes
from fdjax.kernels.shared_prefix.groups import Group

ROWS, WIDTH, PAGE, KV_HEADS, GROUP, HEAD_DIM = 3, 4, 4, 2, 2, 8
TABLE = jnp.asarray([[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 6, 7]], jnp.int32)
LENGTHS = jnp.asarray([16, 11, 9], jnp.int32)
MOST_QUERIES = 128 // GROUP
LARGE = np.iinfo(np.int32).max


def planned(rows: int = ROWS) -> SharedPrefixes:
    groups = [Group(tuple(range(ROWS)), 0, 2 * PAGE, 0)] if rows == ROWS else []
    return plan_prefixes(groups, rows=rows, num_kv_heads=KV_HEADS, group=GROUP)


def changed(name: str, at: tuple[int, ...], value: int) -> SharedPrefixes:
    prefixes = planned()
    array = jnp.asarray(getattr(prefixes, name)).at[at].set(value)
    return dataclasses.replace(prefixes, **{name: array})


def test_what_is_planned_is_within_its_batch():
    prefixes = planned()
    kept = prefixes.within(WIDTH * PAGE, MOST_QUERIES)
    for field in dataclasses.fields(prefixes):
        before, after = (getattr(each, field.name) for each in (prefixes, kept))
        np.testing.assert_array_equal(before, after)
    assert (
        np.array(prefixes.work)[0].any()
        and (np.array(prefixes.parts)[0, :, :3] >= 0).all()
    )


@pytest.mark.parametrize("value", [-1, -LARGE - 1, 1 << 20, LARGE])
@pytest.mark.parametrize("column", range(8))
def test_a_piece_that_points_out_of_the_batch_is_none(column: int, value: int):
    prefixes = changed("work", (0, column), value)
    work = np.array(prefixes.within(WIDTH * PAGE, MOST_QUERIES).work)
    row, first, end, queries, begin, stop, record, _ = work[0]
    assert 0 <= row < ROWS and 0 <= first <= first + queries <= ROWS
    assert 0 <= begin <= stop <= end <= WIDTH * PAGE
    assert 0 <= record < prefixes.num_records
    if column != 7 or value < 0:  # of how many pieces it is the first: nothing is read
        assert not work[0].any()


@pytest.mark.parametrize("value", [-1, -LARGE - 1, 1 << 20, LARGE])
@pytest.mark.parametrize("column", range(3))
def test_a_part_that_is_in_no_record_is_none(column: int, value: int):
    prefixes = changed("parts", (0, 1, column), value)
    parts = np.array(prefixes.within(WIDTH * PAGE, MOST_QUERIES).parts)
    assert (parts[0, 1] == -1).all() and (parts[0, 0, :3] >= 0).all()


@pytest.mark.parametrize("value", [-1, -LARGE - 1, ROWS, LARGE])
def test_rows_and_tokens_are_those_of_the_batch(value: int):
    order = changed("order", (1,), value).within(WIDTH * PAGE, MOST_QUERIES).order
    tokens = changed("tokens", (1,), value).within(WIDTH * PAGE, MOST_QUERIES).tokens
    assert 0 <= int(order[1]) < ROWS and 0 <= int(tokens[1]) <= WIDTH * PAGE


def test_a_query_past_its_table_finds_nothing_beside_what_rows_share():
    draw = np.random.default_rng(0)
    array = jnp.asarray(draw.normal(size=(8, 1, 2, PAGE, KV_HEADS, HEAD_DIM)))
    layer = KVCache.page_major(array.astype(jnp.float32)).layer(0)
    q = jnp.asarray(draw.normal(size=(ROWS, KV_HEADS * GROUP, HEAD_DIM)), jnp.float32)
    lengths = jnp.asarray([17, 11, 9], jnp.int32)
    alone, shared = (
        ops.attention(q, layer, PageView.decoding(TABLE, lengths, each), scale=0.3)
        for each in (None, planned())
    )
    assert not alone[0].any() and alone[1:].any()
    np.testing.assert_array_equal(alone, shared)


def test_what_is_no_plan_of_these_rows_is_refused():
    with pytest.raises(
        TypeError, match="prefixes is of type int; give what `plan_prefixes`"
    ):
        PageView.decoding(TABLE, LENGTHS, prefixes=3)  # pyright: ignore[reportArgumentType]
    message = r"prefixes.tokens is \(5,\), and 3 rows have \(3,\); make prefixes for"
    with pytest.raises(ValueError, match=message):
        PageView.decoding(TABLE, LENGTHS, prefixes=planned(5))
