"""The rows of a call: where their new tokens stand and where they are written."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import PageView
from fdjax.kernels.paged.view import NO_PAGE

PAGE_SIZE, WIDTH, ABSENT = 4, 3, 99
TABLE = np.array([[7, 2, 5], [0, 9, ABSENT], [3, 6, 4]], np.int32)


def ints(values: object) -> jnp.ndarray:
    return jnp.asarray(np.asarray(values, np.int32))


def slot(row: int, position: int) -> int:
    page = TABLE[row, position // PAGE_SIZE]
    return int(page) * PAGE_SIZE + position % PAGE_SIZE


def places(view: PageView, count: int) -> list[tuple[int, int, int]]:
    """Row, position and slot of each token."""

    def each(view: PageView) -> tuple[jax.Array, ...]:
        slots = view.slots(count, page_size=PAGE_SIZE)
        return view.rows(count), view.positions(count), slots

    return list(zip(*(array.tolist() for array in jax.jit(each)(view)), strict=True))


def test_whole_rows_have_the_same_room():
    view = PageView(ints(TABLE), ints([6, 1, 0]))
    assert view.first_positions.tolist() == [0, 0, 0]
    assert view.first_tokens(18).tolist() == [0, 6, 12]
    assert view.last_tokens(18).tolist()[:2] == [5, 6]
    assert places(view, 18) == [
        (row, at, slot(row, at) if at < length else -1)
        for row, length in enumerate((6, 1, 0))
        for at in range(6)
    ]


def test_parts_of_rows_go_on_where_the_last_ones_ended():
    starts, lengths = [5, 0, 8], [9, 2, 8]
    view = PageView(ints(TABLE), ints(lengths), ints(starts))
    assert view.last_tokens(12).tolist()[:2] == [3, 5]
    assert places(view, 12) == [
        (row, at, slot(row, at) if at < length else -1)
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True))
        for at in range(start, start + 4)
    ]


def test_packed_rows_follow_one_another():
    """A row without a token among them, and padding at the end."""
    view = PageView.packed(ints(TABLE), ints([9, 3, 2]), ints([5, 3, 0]))
    assert view.first_tokens(8).tolist() == [0, 4, 4]
    assert view.last_tokens(8).tolist() == [3, 3, 5]
    found = places(view, 8)
    assert found[:6] == [
        (row, at, slot(row, at))
        for row, start, length in [(0, 5, 9), (2, 0, 2)]
        for at in range(start, length)
    ]
    assert [at for *_, at in found[6:]] == [-1, -1]


def test_a_row_with_fewer_tokens_than_it_starts_at_takes_none_of_the_next():
    """Also where what is lacking has more than 32 bits."""
    for start in (7, 2**31 - 1):
        view = PageView.packed(ints(TABLE), ints([5, -5, 5]), ints([4, start, 3]))
        assert view.first_tokens(3).tolist() == [0, 1, 1]
        found = [(0, 4, slot(0, 4)), (2, 3, slot(2, 3)), (2, 4, slot(2, 4))]
        assert places(view, 3) == found


def test_rows_may_begin_anywhere():
    """Room between rows belongs to the row before, and is not written."""
    view = PageView(ints(TABLE), ints([2, 7, 1]), ints([0, 6, 0]), ints([1, 4, 6]))
    assert view.rows(8).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    slots = view.slots(8, page_size=PAGE_SIZE).tolist()
    assert slots[1:3] == [slot(0, 0), slot(0, 1)]
    assert slots[4] == slot(1, 6)
    assert slots[6] == slot(2, 0)
    assert [slots[i] for i in (0, 3, 5, 7)] == [-1] * 4


def test_tokens_before_the_first_row_overwrite_none_of_its_tokens():
    view = PageView(ints(TABLE[:1]), ints([6]), ints([5]), ints([2]))
    queries = view.queries(4, max_tokens=8)
    assert queries.position.tolist() == [-1, -1, 5, -1]
    assert view.slots(4, page_size=PAGE_SIZE).tolist() == [-1, -1, slot(0, 5), -1]


def test_decoding_is_one_token_a_row():
    view = PageView.decoding(ints(TABLE), ints([12, 5, 0]))
    assert places(view, 3)[:2] == [(0, 11, slot(0, 11)), (1, 4, slot(1, 4))]
    assert places(view, 3)[2][2] == -1
    assert view.last_tokens(3).tolist()[:2] == [0, 1]


def test_tokens_past_the_table_are_not_written():
    view = PageView(ints(TABLE), ints([20, 20, 20]), ints([10, 11, 12]))
    slots = view.slots(9, page_size=PAGE_SIZE).reshape(3, 3)
    assert slots[0].tolist() == [slot(0, 10), slot(0, 11), -1]
    assert int(slots[1, 0]) >= ABSENT * PAGE_SIZE  # past the end of the cache
    assert slots[2].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", ["lengths", "starts", "firsts"])
def test_arrays_of_another_number_of_rows_are_named(name: str):
    arrays: dict[str, Any] = {"lengths": ints([1, 1, 1]), name: ints([1, 1])}
    said = rf"page_table has 3 rows, {name} \(2,\); give {name} one number a row, .3."
    with pytest.raises(ValueError, match=said):
        PageView(ints(TABLE), **arrays)


def test_a_table_that_is_no_table_is_named():
    with pytest.raises(ValueError, match=r"page_table is \(9,\); expected \[B, W\]"):
        PageView(ints(TABLE.ravel()), ints([1]))


def test_a_table_of_ids_that_follow_one_another():
    made = PageView.table_of(ints([7, 2, 5, 0, 9, 3]), ints([0, 3, 3, 4, 6]), width=2)
    assert made.tolist() == [[7, 2], [NO_PAGE] * 2, [0, NO_PAGE], [9, 3]]


def test_bad_offsets_name_no_pages():
    """Falling, negative, past the end; and an id below 0."""
    indices, offsets = ints([7, -2, 5]), [0, 2, 1, 3, 9, -4, 2]
    made = PageView.table_of(indices, ints(offsets), width=3)
    none = [NO_PAGE] * 3
    assert made.tolist() == [
        [7, NO_PAGE, NO_PAGE],
        none,
        [NO_PAGE, 5, NO_PAGE],
        none,
        none,
        none,
    ]
    assert PageView.table_of(ints([]), ints([0, 1]), width=1).tolist() == [[NO_PAGE]]


@pytest.mark.parametrize(("rows", "width"), [(0, 2**31), (1, 2**33), (2, 2**31 - 1)])
def test_a_table_beyond_32_bits_is_refused(rows: int, width: int):
    said = f"width is {width}, and a table of {rows} rows has 2147483647 places at most"
    with pytest.raises(ValueError, match=f"^PageView: {said}; .* the 3 ids that there"):
        PageView.table_of(ints([7, 2, 5]), ints([0] * (rows + 1)), width=width)


def test_offsets_past_the_end_name_no_pages_however_large():
    """Not those at the beginning, where sums of 32 bits end."""
    offsets = ints([2**31 - 1, 2**31 - 1, -(2**31), 2**31 - 2, 2**31 - 1])
    made = PageView.table_of(ints([1, 2, 3]), offsets, width=4)
    assert made.tolist() == [[NO_PAGE] * 4] * 4


@pytest.mark.parametrize(
    ("indices", "offsets", "width", "said"),
    [
        ([[1, 2]], [0, 1], 2, r"indices is \(1, 2\); expected \[N\]"),
        ([1, 2], [[0], [1]], 2, r"offsets is \(2, 1\); expected \[B \+ 1\]"),
        ([1, 2], [], 2, r"offsets is \(0,\); give one more than rows"),
        ([1, 2], [0, 1], -1, "width is -1; it must be 0 or more"),
        ([1, 2], [0, 1], 2.0, "width is a float; give a whole number"),
    ],
)
def test_ids_that_make_no_table_are_named(
    indices: Any, offsets: Any, width: Any, said: str
):
    with pytest.raises((TypeError, ValueError), match=f"^PageView: {said}"):
        PageView.table_of(ints(indices), ints(offsets), width=width)


def test_a_traced_width_is_named():
    made = jax.jit(lambda n: PageView.table_of(ints([1]), ints([0, 1]), width=n))
    with pytest.raises(TypeError, match="PageView: width is traced; it must be static"):
        made(2)
