"""`FreeRows`: the rows of the batch that no sequence holds."""

import heapq
from collections.abc import Iterable, Sequence

from fdjax.engine.buckets import smallest_fitting
from fdjax.engine.sequence import EngineSequence


def num_rows_of(sequences: Iterable[EngineSequence]) -> int:
    """The first rows of the batch, as far as any of these sequences has one."""
    rows = (sequence.row for sequence in sequences)
    return max((row + 1 for row in rows if row is not None), default=0)


class FreeRows:
    """Hands out the lowest rows first, so that few decode together.

    Args:
        sizes: of batches, in order; the last is the number of rows.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._free = list(range(sizes[-1]))
        self._withheld = 0

    def __len__(self) -> int:
        """Rows that are free."""
        return len(self._free) - self._withheld

    @property
    def num_held(self) -> int:
        """Rows that are not."""
        return self._sizes[-1] - len(self)

    def take(self, sequence: EngineSequence) -> int:
        """The lowest free row.

        For beams as many rows stay free as they are: they run beside the batch, and
        what they get is a row past its end.
        """
        if sequence.group is None:
            return heapq.heappop(self._free)
        self._withheld += sequence.group.width
        return self._sizes[-1]

    def give_back(self, sequence: EngineSequence) -> None:
        """Frees what a sequence has got."""
        assert sequence.row is not None
        if sequence.group is None:
            heapq.heappush(self._free, sequence.row)
        else:
            self._withheld -= sequence.group.width

    def compact(self, running: Sequence[EngineSequence]) -> list[int] | None:
        """New places of the rows, where a smaller batch could hold all sequences.

        Returns:
            For each row, which one comes there: a permutation; `None` where nothing is
            to be gained. Sequences and free rows are moved in the book at once.
        """
        needed = smallest_fitting(self._sizes, max(len(running), 1))
        outside = [
            sequence
            for sequence in running
            if (sequence.row or 0) >= needed and sequence.group is None
        ]
        if not outside:
            return None
        source = list(range(self._sizes[-1]))
        for sequence in outside:
            assert sequence.row is not None
            row = heapq.heappop(self._free)
            heapq.heappush(self._free, sequence.row)
            source[row], source[sequence.row] = source[sequence.row], source[row]
            sequence.row = row
        return source
