"""Whose work is next, where some have much of it and some of theirs takes long."""

import heapq
import itertools
from dataclasses import dataclass, field

# Of so many turns of an owner's work that comes back, those of the last that came, and
# the one of the first.
_TURNS = 8
_OF_THE_LAST = (0, 4)
_OF_THE_FIRST = 2


@dataclass(order=True)
class _Waiting[T]:
    """Work that waits; the least is next.

    Attributes:
        rank: see `FairOrder.add`, as for what has no line here.
        place: in the order of being added.
    """

    rank: float
    since: float
    place: int
    size: float = field(compare=False)
    work: T = field(compare=False)


@dataclass
class _Owner[T]:
    """Whoever has work.

    Attributes:
        used: seconds of its work, or of whoever was served when it came back.
        reached: how much of each of its works that wait would be done by now, if they
            were done at the same time, a part of each in turn.
        turns: how many that come back were taken.
        waiting: its work, a heap.
    """

    used: float = 0.0
    reached: float = 0.0
    turns: int = 0
    waiting: list[_Waiting[T]] = field(default_factory=list[_Waiting[T]])

    def take(self) -> _Waiting[T]:
        """Its next work, which then waits no more."""
        least = self.waiting[0]
        self.reached += least.size / len(self.waiting)
        taken = self._out_of_order(least) if least.since else least
        if taken is least:
            return heapq.heappop(self.waiting)
        self.waiting.remove(taken)
        heapq.heapify(self.waiting)
        return taken

    def _out_of_order(self, least: _Waiting[T]) -> _Waiting[T]:
        """What is next of work that comes back, of which that is the least."""
        turn, self.turns = self.turns % _TURNS, self.turns + 1
        if turn in _OF_THE_LAST:
            return max(self.waiting, key=lambda one: one.since)
        if turn == _OF_THE_FIRST:
            return min(self.waiting, key=lambda one: one.since)
        return least


class FairOrder[T]:
    """Next is the owner whose work has used least, and of its work that of least rank.

    Who comes back has as little as who is served just then, and no more to spare:
    nobody saves up. Where nobody waits, what was used is forgotten.

    Work of unknown length is given for a short time first, and where that was not
    enough, again with a rank for a longer one. Of an owner's turns every fourth is then
    of the last that came, whatever its rank, so that a crowd of long works does not
    hold up one that comes after it; every eighth is of the first that came, so that
    nothing waits for ever; and the others are of least rank, in the order of coming.
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
        since: float = 0.0,
        size: float | None = None,
    ) -> None:
        """Lets work wait.

        Args:
            work: any.
            owner: whose.
            rank: before more of it: seconds that this work has had, or may have.
            since: when it came at first, in seconds, for work that comes back; 0 for
                other work, which is in the order of being added.
            size: in place of a rank, how much work it is: next is what would be done
                first if all of the owner's were done at the same time. So short work
                goes before long, which has its turn however much of it comes later.
        """
        of = self._owners.setdefault(owner, _Owner())
        if not of.waiting:
            of.used = max(of.used, self._now)
        if size is not None:
            rank = of.reached + size
        entry = _Waiting(rank, since, next(self._places), size or 0.0, work)
        heapq.heappush(of.waiting, entry)
        self._size += 1

    def pop(self) -> tuple[str, T]:
        """The owner and the work that is next; there must be some."""
        name, of = min(
            ((name, of) for name, of in self._owners.items() if of.waiting),
            key=lambda one: (one[1].used, one[1].waiting[0].place),
        )
        self._now = of.used
        self._size -= 1
        return name, of.take().work

    def spend(self, owner: str, seconds: float) -> None:
        """Counts what work has used that is done."""
        if not self._size:
            self._owners.clear()
            self._now = 0.0
        elif owner in self._owners:
            self._owners[owner].used += seconds
