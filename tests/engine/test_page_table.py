"""Page tables on the host."""

import numpy as np

from fdjax.engine.page_table import RowTable, page_table

ABSENT = 9


def test_absent_pages_have_an_id_that_no_page_has():
    table = page_table([[1, 2, 3], []], num_rows=3, width=2, num_pages=ABSENT)
    assert table.tolist() == [[1, 2], [ABSENT] * 2, [ABSENT] * 2]


class Copied:
    """A table, and a copy of it that knows the changes alone."""

    def __init__(self) -> None:
        self.table = RowTable(3, 4, ABSENT)
        self.copy = self.table.first(3).copy()

    def update(self, pages: dict[int, list[int]]) -> int:
        """The number of changes."""
        changes = self.table.update(pages)
        rows, places, ids = changes
        self.copy[rows, places] = ids
        np.testing.assert_array_equal(self.copy, self.table.first(3))
        for row, held in pages.items():
            assert self.copy[row, : len(held)].tolist() == held
        return changes.shape[1]


def test_only_what_has_changed_is_told():
    table, first, second = Copied(), [0, 1], [2]
    assert table.update({0: first, 2: second}) == 3
    assert table.update({0: first, 2: second}) == 0
    first.append(5)
    assert table.update({0: first}) == 1, "row 2 is not in this call"
    assert table.update({0: first, 2: second}) == 0
    assert table.update({0: second}) == 1, "it was moved to another row"
    assert table.update({0: [7, 1]}) == 1, "another's, whose second page is shared"
    assert table.update({0: [7, 4]}) == 1, "the same one, a page of which was moved"
    assert table.update({}) == 0


def test_what_stands_behind_a_rows_pages_stays():
    table = Copied()
    table.update({1: [1, 2, 3]})
    assert table.update({1: [4]}) == 1
    assert table.copy[1].tolist() == [4, 2, 3, ABSENT]
    assert table.table.first(1).tolist() == [[ABSENT] * 4]
