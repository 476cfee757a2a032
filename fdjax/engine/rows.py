"""`FreeRows`: the rows of the batch that no job holds."""

import heapq
from collections.abc import Sequence

from fdjax.engine.buckets import smallest_fitting
from fdjax.engine.job import Job


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

    def take(self, job: Job) -> int:
        """The lowest free row.

        For beams as many rows stay free as they are: they run beside the batch, and
        what they get is a row past its end.
        """
        if job.group is None:
            return heapq.heappop(self._free)
        self._withheld += job.group.width
        return self._sizes[-1]

    def give_back(self, job: Job) -> None:
        """Frees what a job has got."""
        assert job.row is not None
        if job.group is None:
            heapq.heappush(self._free, job.row)
        else:
            self._withheld -= job.group.width

    def compact(self, running: Sequence[Job]) -> list[int] | None:
        """New places of the rows, where a smaller batch could hold all jobs.

        Returns:
            For each row, which one comes there: a permutation; `None` where nothing is
            to be gained. Jobs and free rows are moved in the book at once.
        """
        needed = smallest_fitting(self._sizes, max(len(running), 1))
        outside = [
            job for job in running if (job.row or 0) >= needed and job.group is None
        ]
        if not outside:
            return None
        source = list(range(self._sizes[-1]))
        for job in outside:
            assert job.row is not None
            row = heapq.heappop(self._free)
            heapq.heappush(self._free, job.row)
            source[row], source[job.row] = source[job.row], source[row]
            job.row = row
        return source
