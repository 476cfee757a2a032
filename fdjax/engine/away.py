"""`AwaySequences`: sequences that have neither a row nor a place in the queue."""

from collections.abc import Iterator

from fdjax.engine.sequence import EngineSequence


class AwaySequences:
    """Those that gave up a row while tokens of theirs were on the way, or are parked.

    A sequence's row and pages are free at once, as a device runs launches in order.
    What it has on the way is still read: it loses none of its tokens, and nobody waits
    for them. Only then may it have a row again.
    """

    def __init__(self) -> None:
        self._parked: dict[EngineSequence, bool] = {}

    def __contains__(self, sequence: EngineSequence) -> bool:
        """Whether a sequence is away."""
        return sequence in self._parked

    def __iter__(self) -> Iterator[EngineSequence]:
        """All of them."""
        return iter([*self._parked])

    @property
    def num_parked(self) -> int:
        """Those that stay until they are called."""
        return sum(self._parked.values())

    @property
    def any_returning(self) -> bool:
        """Some come back by themselves."""
        return not all(self._parked.values())

    @property
    def any_on_way(self) -> bool:
        """Some come back as soon as what they have on the way is read."""
        returning = (
            sequence for sequence, parked in self._parked.items() if not parked
        )
        return any(not sequence.is_read for sequence in returning)

    def is_parked(self, sequence: EngineSequence) -> bool:
        """Whether a sequence stays until it is called."""
        return self._parked.get(sequence, False)

    def add(self, sequence: EngineSequence, *, parked: bool) -> None:
        """Takes a sequence in, or changes whether it is parked.

        Args:
            sequence: it has no row, and is in no queue.
            parked: it stays until it is called: added again, and not parked.
        """
        self._parked[sequence] = parked

    def remove(self, sequence: EngineSequence) -> None:
        """Forgets a sequence."""
        del self._parked[sequence]

    def returned(self) -> list[EngineSequence]:
        """Takes out those that are not parked and have nothing on the way."""
        sequences = [
            sequence for sequence, parked in self._parked.items() if not parked
        ]
        sequences = [sequence for sequence in sequences if sequence.is_settled]
        for sequence in sequences:
            self.remove(sequence)
        return sequences
