"""Whose turn is next: whoever holds least; of equals, whoever has been so longest."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator

from fdjax.engine.sequence import EngineSequence


class LeastFirst[K: Hashable]:
    """Those who wait, each with the number of rows that it holds.

    All is done in constant time, but to go through them begins with the different
    numbers.
    """

    def __init__(self) -> None:
        self._held: dict[K, int] = {}
        self._queues: dict[int, OrderedDict[K, None]] = {}

    def __bool__(self) -> bool:
        """Somebody waits."""
        return bool(self._held)

    def __contains__(self, key: K) -> bool:
        """Whether `key` waits."""
        return key in self._held

    def put(self, key: K, held: int, *, first: bool = False) -> None:
        """Adds a key, or changes what it holds.

        Args:
            key: who.
            held: rows.
            first: before all who hold as many; else after them, or where it was.
        """
        if self._held.get(key) != held:
            self.drop(key)
            self._held[key] = held
        queue = self._queues.setdefault(held, OrderedDict())
        queue[key] = None
        if first:
            queue.move_to_end(key, last=False)

    def drop(self, key: K) -> None:
        """Takes a key out, if it waits."""
        held = self._held.pop(key, None)
        if held is not None:
            queue = self._queues[held]
            del queue[key]
            if not queue:
                del self._queues[held]

    def __iter__(self) -> Iterator[K]:
        """All who wait, the next one first."""
        for held in sorted(self._queues):
            yield from self._queues[held]


def in_turn(
    sequences: Iterable[EngineSequence],
    order: Callable[[EngineSequence], int] = lambda sequence: sequence.turn,
) -> list[EngineSequence]:
    """Sequences that run, those that go first before those that give way.

    They go by priority. Of one priority, each tenant has one sequence before any has
    two, and of a tenant's sequences, so has each request; then they go by `order`:
    whoever was let in first, if it is not given.
    """
    ordered = sorted(sequences, key=order)
    ordered = _one_of_each(ordered, lambda sequence: sequence.origin)
    ordered = _one_of_each(
        ordered, lambda sequence: (sequence.priority, sequence.origin.tenant)
    )
    return sorted(ordered, key=lambda sequence: sequence.priority)


def _one_of_each(
    sequences: list[EngineSequence], kind: Callable[[EngineSequence], Hashable]
) -> list[EngineSequence]:
    """The first sequence of each kind, then the second ones, and so on."""
    seen: Counter[Hashable] = Counter()
    ranks: dict[EngineSequence, int] = {}
    for sequence in sequences:
        ranks[sequence] = seen[kind(sequence)]
        seen[kind(sequence)] += 1
    return sorted(sequences, key=ranks.__getitem__)
