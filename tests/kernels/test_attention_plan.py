"""Plans: what the definition promises, and the kernel against it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels.attention_plan import (
    Plan,
    PlanShape,
    cuda,
    invariant_shape,
    make_plan,
    plan_shape,
)
from fdjax.kernels.attention_plan.shape import MAX_ROW_PIECES, MAX_ROWS
from tests.support.handlers import skip_without

SLOTS = (1, 3, 8, 66, 78, 132, 256)


@st.composite
def _drawn(draw: st.DrawFn) -> tuple[list[int], PlanShape, int, int | None]:
    """Lengths of rows, most of them short, and what their plan is for."""
    length = st.one_of(
        st.sampled_from([0, 1, 15, 16, 17, 255, 256, 257]),
        st.integers(0, 600),
        st.integers(0, 40_000),
    )
    lengths = draw(st.lists(length, min_size=1, max_size=40))
    kv_heads = draw(st.sampled_from([1, 2, 3, 8, 12]))
    heads = draw(st.sampled_from([h for h in (1, 2, 4, 8) if kv_heads % h == 0]))
    slots = draw(st.sampled_from(SLOTS))
    room = draw(st.sampled_from([0, 100, 1 << 16]))
    window = draw(st.sampled_from([None, 1, 17, 1000]))
    if piece := draw(st.sampled_from([0, 0, 16, 512])):
        shape = invariant_shape(
            len(lengths),
            kv_heads,
            slots=slots,
            heads=heads,
            piece_tokens=piece,
            room=room,
        )
        return lengths, shape, room, window
    shape = plan_shape(
        len(lengths),
        kv_heads,
        slots=slots,
        heads=heads,
        item_tokens=draw(st.sampled_from([0, 64, 1000, 4096])),
    )
    return lengths, shape, room, window


def _tokens(plan: Plan) -> dict[tuple[int, int], list[int]]:
    """How often each token of each row and head is attended to."""
    seen: dict[tuple[int, int], list[int]] = {}
    for item in plan.items:
        first, last = item.first * 16, item.last * 16
        tokens = range(max(first, item.begin), min(last, item.end))
        for head in range(item.kv_head, item.kv_head + item.heads):
            seen.setdefault((item.row, head), []).extend(tokens)
    return seen


@settings(deadline=None, max_examples=60)
@given(_drawn())
def test_every_key_of_every_row_is_read_once(
    drawn: tuple[list[int], PlanShape, int, int | None],
):
    lengths, shape, room, window = drawn
    plan = make_plan(lengths, shape, room=room, window=window)
    seen = _tokens(plan)
    assert len(seen) == len(lengths) * shape.num_kv_heads
    for (row, _), tokens in seen.items():
        end = min(lengths[row], room)
        begin = 0 if window is None else max(end - window, 0)
        assert sorted(tokens) == list(range(begin, end))


@settings(deadline=None, max_examples=60)
@given(_drawn())
def test_a_plan_fits_its_room(drawn: tuple[list[int], PlanShape, int, int | None]):
    lengths, shape, room, window = drawn
    plan = make_plan(lengths, shape, room=room, window=window)
    assert len(plan.items) <= shape.max_items
    records = [
        item.record + item.kv_head * item.pieces + item.piece
        for item in plan.items
        if item.pieces > 1
    ]
    assert sorted(records) == list(range(plan.num_pieces))
    assert plan.num_pieces <= shape.max_pieces
    assert plan == make_plan(lengths, shape, room=room, window=window)


def _of_row(plan: Plan, row: int) -> set[tuple[int, ...]]:
    """What is done for a row, whoever does it and wherever it leaves its results."""
    return {item.integers()[1:-1] for item in plan.items if item.row == row}


@settings(deadline=None, max_examples=60)
@given(_drawn(), st.sampled_from(SLOTS), st.sampled_from([16, 512]))
def test_what_is_done_for_a_row_that_is_cut_by_itself_follows_from_it(
    drawn: tuple[list[int], PlanShape, int, int | None], slots: int, piece: int
):
    lengths, shape, room, window = drawn

    def planned(lengths: list[int], slots: int) -> Plan:
        of_rows = invariant_shape(
            len(lengths),
            shape.num_kv_heads,
            slots=slots,
            heads=shape.heads,
            piece_tokens=piece,
            room=room,
        )
        return make_plan(lengths, of_rows, room=room, window=window)

    plan = planned(lengths, shape.slots)
    for row in {0, len(lengths) // 2, len(lengths) - 1}:
        assert _of_row(plan, row) == _of_row(planned([lengths[row]], slots), 0)
    assert max(item.pieces for item in plan.items) <= MAX_ROW_PIECES


def _busiest(plan: Plan) -> float:
    """Of the mean over the slots."""
    loads = plan.loads()
    return float(loads.max() / loads.mean())


def test_equal_rows_that_fill_the_slots_are_not_cut():
    for rows, heads in ((64, 2), (128, 4), (256, 8)):
        plan = make_plan(
            [1024] * rows, plan_shape(rows, 8, slots=256, heads=8), room=4096
        )
        assert {(item.heads, item.pieces) for item in plan.items} == {(heads, 1)}
        assert _busiest(plan) == 1.0


@pytest.mark.parametrize(
    "lengths",
    [
        [512] * 63 + [32_768],
        [4096] * 7 + [32_768],
        [256] * 255 + [32_768],
        [32_768],
        [1] * 30 + [100_000, 50_000],
    ],
    ids=["63x512", "7x4096", "255x256", "one", "two_of_32"],
)
def test_a_long_row_is_shared_out(lengths: list[int]):
    few = len(lengths) * 8 < 256
    shape = plan_shape(
        len(lengths), 8, slots=132 if few else 256, heads=1 if few else 8
    )
    plan = make_plan(lengths, shape, room=1 << 17)
    assert _busiest(plan) <= 1.15
    assert plan.num_pieces > 0


def test_rows_like_those_of_conversations_are_shared_out():
    # Prompts and answers of a conversation trace are about log-normal.
    random = np.random.default_rng(0)
    worst = dict.fromkeys((64, 256), 0.0)
    for rows in worst:
        for _ in range(12):
            drawn = random.lognormal(math.log(900), 0.9, rows)
            lengths = np.clip(drawn, 10, 14_000).astype(int).tolist()
            shape = plan_shape(rows, 8, slots=256, heads=8)
            plan = make_plan(lengths, shape, room=1 << 15)
            worst[rows] = max(worst[rows], _busiest(plan))
    assert worst[64] <= 1.15
    assert worst[256] <= 1.15


def _written(
    lengths: list[int], shape: PlanShape, room: int, window: int | None
) -> Any:
    def run(lengths: jax.Array) -> jax.Array:
        return cuda.make_plan(lengths, shape, room=room, window=window or 2**31 - 1)

    return np.asarray(jax.jit(run)(jnp.asarray(lengths, jnp.int32)))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 31, 64, 255, 1025, MAX_ROWS])
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize(("kv_heads", "heads", "slots"), [(8, 8, 256), (3, 1, 78)])
@pytest.mark.parametrize("piece_tokens", [0, 512])
def test_the_kernel_makes_the_same_plan(
    rows: int,
    window: int | None,
    kv_heads: int,
    heads: int,
    slots: int,
    piece_tokens: int,
):
    skip_without(cuda.NAME, "gpu")
    random = np.random.default_rng(rows)
    shape = plan_shape(rows, kv_heads, slots=slots, heads=heads)
    if piece_tokens:
        shape = invariant_shape(
            rows,
            kv_heads,
            slots=slots,
            heads=heads,
            piece_tokens=piece_tokens,
            room=16_384,
        )
    for scale in (1, 300, 20_000):
        lengths = random.integers(0, scale, rows)
        lengths[random.integers(rows)] = 30_000
        expected = make_plan(lengths.tolist(), shape, room=16_384, window=window)
        actual = _written(lengths.tolist(), shape, 16_384, window)
        used = shape.items_at + 8 * len(expected.items)
        np.testing.assert_array_equal(actual[:used], expected.integers()[:used])


@pytest.mark.gpu
def test_the_kernel_makes_the_same_plan_where_costs_do_not_fit_32_bits():
    skip_without(cuda.NAME, "gpu")
    # Of 66 clusters each has 2^33 tokens of a head and more to read.
    shape, room = plan_shape(MAX_ROWS, 128, slots=66, heads=8), 1 << 20
    lengths = [room] * MAX_ROWS
    expected = make_plan(lengths, shape, room=room)
    actual = _written(lengths, shape, room, None)
    used = shape.items_at + 8 * len(expected.items)
    np.testing.assert_array_equal(actual[:used], expected.integers()[:used])
