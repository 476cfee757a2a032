"""Page tables on the host: which pages each row of a call reads."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np


def page_table(
    pages: Sequence[Sequence[int]], *, num_rows: int, width: int, num_pages: int
) -> np.ndarray:
    """Page ids by row, `[B, W]`; absent pages are `num_pages`."""
    table = np.full((num_rows, width), num_pages, np.int32)
    for row, held in enumerate(pages):
        table[row, : len(held)] = held[:width]
    return table


class RowTable:
    """The page table of an engine's rows, and how it differs from a copy of it.

    A row gets a page every page size steps, so that most rows stay as they are: whole,
    the table of 256 rows of 131,072 tokens has 8 MiB.

    Args:
        num_rows: `R`.
        width: the most pages of a row.
        num_pages: of the KV array, `P`; the id of an absent page.
    """

    def __init__(self, num_rows: int, width: int, num_pages: int) -> None:
        self._ids = np.full((num_rows, width), num_pages, np.int32)
        # The list of pages that a row was written from, and how many it had.
        self._written: dict[int, tuple[list[int], int]] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """`R` and the most pages of a row."""
        num_rows, width = self._ids.shape
        return num_rows, width

    def update(self, pages: Mapping[int, list[int]]) -> np.ndarray:
        """Makes the rows what they are to be; all others stay as they are.

        Args:
            pages: of each row. A list only grows; another one is another sequence's,
                or its pages were moved. What a row had behind its pages stays there.

        Returns:
            The changes, `[3, C]`: rows, places in them, and pages.
        """
        found: list[tuple[int, int, int]] = []
        for row, held in pages.items():
            source, count = self._written.get(row, (None, 0))
            if source is not held:
                places = self._differing(row, held)
            elif count < len(held):
                places = range(count, len(held))
            else:
                continue
            found += [(row, place, held[place]) for place in places]
            self._written[row] = held, len(held)
        changes = np.array(found, np.int32).reshape(-1, 3).T
        rows, places, ids = changes
        self._ids[rows, places] = ids
        return changes

    def first(self, num_rows: int) -> np.ndarray:
        """The first rows, as they are now."""
        return self._ids[:num_rows]

    def _differing(self, row: int, held: list[int]) -> Iterable[int]:
        differ = self._ids[row, : len(held)] != np.array(held, np.int32)
        return np.flatnonzero(differ).tolist()
