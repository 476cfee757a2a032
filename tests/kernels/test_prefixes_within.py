"""What rows share, made for another batch or by hand: refused, or kept within it."""

import dataclasses
import importlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops
from fdjax.kernels.paged import KVCache, PageView, SharedPrefixes
from fdjax.kernels.shared_prefix import plan_prefixes
from fdjax.kernels.shared_prefix.groups import Group
from fdjax.pytree import of_shapes

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


# The last column is of how many pieces it is the first, a count that nobody follows.
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *itertools.product(range(7), [-1, -LARGE - 1, 1 << 20, LARGE]),
        (7, -1),
    ],
)
def test_a_piece_that_points_out_of_the_batch_is_none(column: int, value: int):
    """What it would have written nobody joins; the pieces behind it stay."""
    prefixes = changed("work", (0, column), value)
    kept = prefixes.within(WIDTH * PAGE, MOST_QUERIES)
    work, parts = np.array(kept.work), np.array(kept.parts)
    lost = int(planned().work[0, 6])
    num_pieces = int((planned().work[:, 3] > 0).sum())
    np.testing.assert_array_equal(work[: num_pieces - 1], prefixes.work[1:num_pieces])
    assert not work[num_pieces - 1 :].any()
    for record, count, *_ in parts.reshape(-1, 4):
        assert record == -1 or lost not in range(record, record + count)


def test_parts_of_other_groups_stay_where_a_piece_is_none():
    groups = [Group((0, 1), 0, 2 * PAGE, 0), Group((2, 3), 0, PAGE, 0)]
    prefixes = plan_prefixes(groups, rows=4, num_kv_heads=KV_HEADS, group=GROUP)
    bad = dataclasses.replace(prefixes, work=prefixes.work.at[0, 0].set(99))
    parts = np.array(bad.within(WIDTH * PAGE, MOST_QUERIES).parts)[0]
    whole = parts[:, 0] >= 0
    assert whole.tolist() in ([True, True, False, False], [False, False, True, True])


def test_a_part_of_a_record_that_nobody_writes_is_none():
    prefixes = changed("parts", (0, 0, 0), planned().num_records - 1)
    parts = np.array(prefixes.within(WIDTH * PAGE, MOST_QUERIES).parts)
    assert (parts[0, 0] == -1).all() and (parts[0, 1:, 0] >= 0).all()


def test_tables_may_have_room_for_more_tokens_than_32_bits_count():
    prefixes = planned()
    kept = prefixes.within(2**40, MOST_QUERIES)
    np.testing.assert_array_equal(kept.work, prefixes.work)


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


def test_attention_follows_no_number_out_of_the_batch(monkeypatch: pytest.MonkeyPatch):
    """Of whatever implementation; and a row past its table finds nothing."""
    given: list[PageView] = []

    def ones(q: jax.Array, kv: Any, pages: PageView, *_: Any, **__: Any) -> jax.Array:
        given.append(pages)
        return jnp.ones_like(q)

    module = importlib.import_module("fdjax.ops.attention")
    monkeypatch.setattr(module, "_decoding", ones)
    layer = KVCache.page_major(jnp.ones((8, 1, 2, PAGE, KV_HEADS, HEAD_DIM))).layer(0)
    q = jnp.ones((ROWS, KV_HEADS * GROUP, HEAD_DIM))
    lengths = jnp.asarray([17, 11, 9], jnp.int32)
    bad = changed("order", (1,), LARGE)
    out = ops.attention(q, layer, PageView.decoding(TABLE, lengths, bad), scale=0.3)
    assert np.array(out).reshape(ROWS, -1).any(axis=1).tolist() == [False, True, True]
    (pages,) = given
    assert pages.lengths.tolist() == [0, 11, 9]
    assert pages.prefixes is not None and int(pages.prefixes.order[1]) == ROWS - 1


def test_rows_past_their_tables_find_the_same_with_and_without_prefixes():
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
    message = r"prefixes.tokens is \(5,\), and 3 rows have \[B\]; make prefixes for"
    with pytest.raises(ValueError, match=message):
        PageView.decoding(TABLE, LENGTHS, prefixes=planned(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"work": jnp.int32(3)}, r"prefixes.work is \(\); expected \[M, 8\]"),
        (
            {"work": jnp.zeros((4, 7), jnp.int32)},
            r"prefixes.work is \(4, 7\), .*\[M, 8\]",
        ),
        ({"tokens": jnp.zeros(3)}, "prefixes.tokens is float32; cast it to a type"),
    ],
)
def test_arrays_of_other_shapes_or_types_are_named(
    change: dict[str, jax.Array], message: str
):
    prefixes = of_shapes(SharedPrefixes, **(vars(planned()) | change))
    with pytest.raises(ValueError, match=message):
        PageView.decoding(TABLE, LENGTHS, prefixes=prefixes)
