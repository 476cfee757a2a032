"""`FreeRows`: the rows of the batch that no sequence holds."""

import heapq
from collections.abc import Sequence

from fdjax.engine.buckets import smallest_fitting
from fdjax.engine.sequence import EngineSequence
from fdjax.memory.highest import Highest


class FreeRows:
    """Hands out the lowest rows first, so that few decode together.

    Args:
        sizes: of batches, in order; the last is the number of rows.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._free = list(range(sizes[-1]))
        self._held = set[int]()
        self._highest = Highest(sizes[-1], self._held.__contains__)
        self._withheld = 0

    def __len__(self) -> int:
        """Rows that are free."""
        return len(self._free) - self._withheld

    @property
    def num_held(self) -> int:
        """Rows that are not."""
        return self._sizes[-1] - len(self)

    @property
    def end(self) -> int:
        """One past the highest row that is held: so many, at most, are in a batch."""
        return self._highest.end

    def take(self, sequence: EngineSequence) -> int:
        """The lowest free row.

        For beams as many rows stay free as they are: they run beside the batch, and
        what they get is a row past its end.
        """
        if not sequence.is_search:
            return self._lowest()
        self._withheld += sequence.request.num_rows
        return self._sizes[-1]

    def give_back(self, sequence: EngineSequence) -> None:
        """Frees what a sequence has got."""
        assert sequence.row is not None
        if not sequence.is_search:
            self._release(sequence.row)
        else:
            self._withheld -= sequence.request.num_rows

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
            if (sequence.row or 0) >= needed and not sequence.is_search
        ]
        if not outside:
            return None
        source = list(range(self._sizes[-1]))
        for sequence in outside:
            assert sequence.row is not None
            row = self._lowest()
            self._release(sequence.row)
            source[row], source[sequence.row] = source[sequence.row], source[row]
            sequence.row = row
        return source

    def _lowest(self) -> int:
        """The lowest free row, which is held then."""
        row = heapq.heappop(self._free)
        self._held.add(row)
        self._highest.added((row,))
        return row

    def _release(self, row: int) -> None:
        heapq.heappush(self._free, row)
        self._held.remove(row)
        self._highest.removed()
