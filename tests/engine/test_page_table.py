"""Page tables on the host."""

import numpy as np
import pytest

from fdjax.engine.page_table import RowTable, page_table

ABSENT = 9


def test_absent_pages_have_an_id_that_no_page_has():
    table = page_table([[1, 2, 3], []], num_rows=3, width=2, num_pages=ABSENT)
    assert table.tolist() == [[1, 2], [ABSENT] * 2, [ABSENT] * 2]


@pytest.fixture
def table() -> RowTable:
    return RowTable(3, 4, ABSENT)


def _rows(table: RowTable) -> list[list[int]]:
    rows = table.part(3, 4).tolist()
    return [[page for page in row if page != ABSENT] for row in rows]


def test_rows_grow_change_and_leave(table: RowTable):
    first, second = [0, 1], [2]
    table.update({0: first, 2: second})
    assert _rows(table) == [[0, 1], [], [2]]
    first.append(5)
    table.update({0: first, 2: second})
    assert _rows(table) == [[0, 1, 5], [], [2]]
    table.update({0: second})  # moved
    assert _rows(table) == [[2], [], []]
    table.update({0: [7]})  # another sequence, as long as the one before
    assert _rows(table) == [[7], [], []]
    table.update({0: [4]})  # the same one, whose page was moved
    assert _rows(table) == [[4], [], []]
    table.update({})
    assert _rows(table) == [[], [], []]


def test_a_part_does_not_change_later(table: RowTable):
    table.update({0: [1]})
    part = table.part(1, 2)
    table.update({0: [3, 4]})
    np.testing.assert_array_equal(part, [[1, ABSENT]])
