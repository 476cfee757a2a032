"""Page tables on the host: which pages each row of a call reads."""

from collections.abc import Mapping, Sequence

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
    """The page table of an engine's rows, kept from one decode call to the next.

    A row gets a page every page size steps, so that most rows stay as they are: made
    anew in each step, the table of 256 rows costs the host over a millisecond.

    Args:
        num_rows: `R`.
        width: the most pages of a row.
        num_pages: of the KV array, `P`; the id of an absent page.
    """

    def __init__(self, num_rows: int, width: int, num_pages: int) -> None:
        self._ids = np.full((num_rows, width), num_pages, np.int32)
        self._absent = num_pages
        # The list of pages that a row was written from, and how many it had.
        self._written: dict[int, tuple[list[int], int]] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """`R` and the most pages of a row."""
        num_rows, width = self._ids.shape
        return num_rows, width

    def update(self, pages: Mapping[int, list[int]]) -> None:
        """Makes the rows what they are to be; all others are absent.

        Args:
            pages: of each row. A list only grows; another one is another sequence's,
                or its pages were moved.
        """
        for row in self._written.keys() - pages.keys():
            self._ids[row] = self._absent
            del self._written[row]
        for row, held in pages.items():
            source, count = self._written.get(row, (None, 0))
            if source is held and count == len(held):
                continue
            if source is not held:
                self._ids[row], count = self._absent, 0
            self._ids[row, count : len(held)] = held[count:]
            self._written[row] = held, len(held)

    def part(self, num_rows: int, width: int) -> np.ndarray:
        """A copy of the first rows, `[B, W]`, for a device that reads it later."""
        return self._ids[:num_rows, :width].copy()
