"""`DeviceTable`: what changes in the page table of an engine's rows, on the device."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from fdjax.engine.buckets import Buckets
from fdjax.engine.page_table import RowTable
from fdjax.engine.programs import Programs
from fdjax.generate.progress import GenerationProgress

# Places that a call changes which does nothing else.
NUM_PLACES = 1024


class DeviceTable:
    """The page table of all rows, as the device has it before the next call.

    Calls take what has changed since the last one, if that is little: a page for each
    row that decodes, and those that the tokens of prompts fill. Where it is more
    (prefixes that were found, rows that were moved), the rest is changed before.

    Args:
        programs: of the engine.
        buckets: its shapes.
        num_pages: of the KV array, `P`; the id of an absent page.
    """

    def __init__(self, programs: Programs, buckets: Buckets, num_pages: int) -> None:
        self._programs = programs
        self._here = RowTable(buckets.rows[-1], buckets.widths[-1], num_pages)

    @property
    def num_rows(self) -> int:
        """`R`."""
        return self._here.shape[0]

    def first(self, num_rows: int) -> np.ndarray:
        """The first rows, on the host; nobody may keep it."""
        return self._here.first(num_rows)

    def turn(
        self,
        progress: GenerationProgress,
        pages: Mapping[int, list[int]],
        *,
        num_rows: int,
        room: int,
    ) -> tuple[GenerationProgress, np.ndarray, np.ndarray]:
        """Goes over to what rows have now; nobody waits for it.

        Args:
            progress: which has the table.
            pages: of the rows of the next call; see `RowTable.update`.
            num_rows: of that call, `B`.
            room: changes that it takes, `C`.

        Returns:
            The progress to call it with, and its `RowPages.changes` and `counts`.
        """
        changes = self._here.update(pages)
        while changes.shape[1] > room:
            progress = self.place(progress, changes[:, :NUM_PLACES])
            changes = changes[:, NUM_PLACES:]
        counts = np.zeros(num_rows, np.int32)
        counts[list(pages)] = [len(held) for held in pages.values()]
        return progress, self._padded(changes, room), counts

    def place(
        self, progress: GenerationProgress, changes: np.ndarray
    ) -> GenerationProgress:
        """Makes up to `NUM_PLACES` changes on the device."""
        there = jax.device_put(self._padded(changes, NUM_PLACES))
        table = self._programs.place(progress.table, there)
        return dataclasses.replace(progress, table=table)

    def _padded(self, changes: np.ndarray, room: int) -> np.ndarray:
        padded = np.full((3, room), self.num_rows, np.int32)
        padded[:, : changes.shape[1]] = changes
        return padded
