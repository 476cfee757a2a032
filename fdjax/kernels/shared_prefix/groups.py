"""Which rows share which pages (FlashInfer, section 3.1.2: composable formats)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.table import Worth

MAX_LEVELS = 2
"""Groups that a row may belong to, one within the other."""

type Table = np.ndarray[Any, np.dtype[np.int32]]


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows with the same pages at the same places.

    Attributes:
        rows: of the batch; those of a group within this one follow one another.
        begin: the first token that they share; what is before is an outer group's.
        end: the token behind the last.
        level: how many groups this one lies within.
    """

    rows: tuple[int, ...]
    begin: int
    end: int
    level: int

    @property
    def saved(self) -> int:
        """Tokens that are not read because one row's read serves all."""
        return (len(self.rows) - 1) * (self.end - self.begin)


def find_groups(
    page_table: Table,
    lengths: Sequence[int],
    *,
    page_size: int,
    worth: Worth | None = None,
) -> tuple[Group, ...]:
    """The groups by which the most reads are saved; none where too few would be.

    A row's last token never belongs to a prefix: its page is the row's own.

    Args:
        page_table: pages of each row, `[B, W]`; rows of length 0 are in no group.
        lengths: of each row, this step's token included.
        page_size: `Z`.
        worth: what must be saved; `None`: what was measured of the device.
    """
    full = {row: (int(n) - 1) // page_size for row, n in enumerate(lengths)}
    rows = tuple(row for row, pages in full.items() if pages > 0)
    worth = table.PART.find() if worth is None else worth
    search = _Search(page_table, full, page_size, worth.of_group)
    groups = search.best(rows, begin=0, level=0).groups
    return groups if _saved(groups) >= worth.of_batch else ()


class _Found(NamedTuple):
    """Rows in an order in which all groups stand together, and the groups."""

    order: tuple[int, ...]
    groups: tuple[Group, ...]


@dataclasses.dataclass(frozen=True)
class _Search:
    table: Table
    full: dict[int, int]  # pages of each row that may be shared
    page_size: int
    least: int  # tokens that a group must save

    def best(self, rows: tuple[int, ...], *, begin: int, level: int) -> _Found:
        """Of rows that are the same up to page `begin`: as one group, or in parts."""
        if len(rows) < 2 or level == MAX_LEVELS:
            return _Found(rows, ())
        end = self._common(rows, begin)
        parts = self._parts(rows, end)
        if len(parts) == len(rows) and end == begin:
            return _Found(rows, ())
        apart = _joined([self.best(p, begin=begin, level=level) for p in parts])
        if end == begin:
            return apart
        within = _joined([self.best(p, begin=end, level=level + 1) for p in parts])
        size = self.page_size
        group = Group(within.order, begin * size, end * size, level)
        together = (group, *within.groups)
        if group.saved < self.least or _saved(together) <= _saved(apart.groups):
            return apart
        return _Found(within.order, together)

    def _common(self, rows: tuple[int, ...], begin: int) -> int:
        """The first page from `begin` on that is not the same, or not to be shared."""
        most = min(self.full[row] for row in rows)
        if begin == most or np.any(
            self.table[list(rows), begin] != self.table[rows[0], begin]
        ):
            return begin  # most often: no need to look at all pages
        own = self.table[list(rows), begin:most]
        differs = np.any(own[1:] != own[0], axis=0)
        return begin + int(np.argmax(differs)) if np.any(differs) else most

    def _parts(self, rows: tuple[int, ...], page: int) -> list[tuple[int, ...]]:
        """Rows with the same page there; each without one to share by itself."""
        parts: dict[int, list[int]] = {}
        for row in rows:
            shared = self.full[row] > page
            parts.setdefault(int(self.table[row, page]) if shared else ~row, []).append(
                row
            )
        return [tuple(part) for part in parts.values()]


def _joined(parts: Sequence[_Found]) -> _Found:
    return _Found(
        tuple(row for part in parts for row in part.order),
        tuple(group for part in parts for group in part.groups),
    )


def _saved(groups: Sequence[Group]) -> int:
    return sum(group.saved for group in groups)
