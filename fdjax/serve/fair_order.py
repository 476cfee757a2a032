"""Whose work is next, where some have much of it and some of theirs takes long."""

import heapq
import itertools
from dataclasses import dataclass, field


@dataclass
class _Owner[T]:
    """Whoever has work.

    Attributes:
        used: seconds of its work, or of whoever was served when it came back.
        reached: how much of each of its works that wait would be done by now, if they
            were done at the same time, a part of each in turn.
        waiting: its work, least rank first, then in the order of coming; and its size.
    """

    used: float = 0.0
    reached: float = 0.0
    waiting: list[tuple[float, int, float, T]] = field(
        default_factory=list[tuple[float, int, float, T]]
    )


class FairOrder[T]:
    """Next is the owner whose work has used least, and of its work that of least rank.

    Who comes back has as little as who is served just then, and no more to spare:
    nobody saves up. Where nobody waits, what was used is forgotten.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Owner[T]] = {}
        self._places = itertools.count()
        self._now = 0.0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        work: T,
        *,
        owner: str = "",
        rank: float = 0.0,
        size: float | None = None,
    ) -> None:
        """Lets work wait.

        Args:
            work: any.
            owner: whose.
            rank: before more of it: seconds that this work has had, or may have.
            size: in place of a rank, how much work it is: next is what would be done
                first if all of the owner's were done at the same time. So short work
                goes before long, which has its turn however much of it comes later.
        """
        of = self._owners.setdefault(owner, _Owner())
        if not of.waiting:
            of.used = max(of.used, self._now)
        if size is not None:
            rank = of.reached + size
        entry = rank, next(self._places), size or 0.0, work
        heapq.heappush(of.waiting, entry)
        self._size += 1

    def pop(self) -> tuple[str, T]:
        """The owner and the work that is next; there must be some."""
        name, of = min(
            ((name, of) for name, of in self._owners.items() if of.waiting),
            key=lambda one: (one[1].used, one[1].waiting[0][1]),
        )
        self._now = of.used
        of.reached += of.waiting[0][2] / len(of.waiting)
        _, _, _, work = heapq.heappop(of.waiting)
        self._size -= 1
        return name, work

    def spend(self, owner: str, seconds: float) -> None:
        """Counts what work has used that is done."""
        if not self._size:
            self._owners.clear()
            self._now = 0.0
        elif owner in self._owners:
            self._owners[owner].used += seconds
