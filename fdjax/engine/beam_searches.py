"""`BeamSearches`: running sequences that are beam searches, and their beams' pages."""

from collections.abc import Callable, Sequence

from fdjax.engine.room import Room
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.stopping import FinishReason
from fdjax.memory.pages import PagePool

# Of so many rows, one is never a search's where the searches' share is not chosen.
_NO_BEAM_OF = 8


def usual_share(num_rows: int) -> int:
    """Of so many rows, how many searches may hold in a server by default."""
    return max(num_rows - max(num_rows // _NO_BEAM_OF, 1), 1)


class BeamSearches:
    """Few among many, as in `FormedSequences`.

    Args:
        most_rows: that they may hold together.

    Attributes:
        most_rows: see above.
        num_dead: pages given back before their search ended.
    """

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._sequences: list[EngineSequence] = []
        self.num_dead = 0

    @property
    def num_rows(self) -> int:
        """Rows that they hold."""
        return sum(sequence.request.num_rows for sequence in self._sequences)

    def is_too_many(self, sequence: EngineSequence) -> bool:
        """With this one they would hold more rows than they may."""
        return self.num_rows + sequence.request.num_rows > self.most_rows

    def add(self, sequence: EngineSequence) -> None:
        """Takes a sequence that runs now, if it is one."""
        if sequence.is_search:
            self._sequences.append(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Forgets a sequence that runs no more."""
        if sequence.is_search:
            self._sequences.remove(sequence)

    def settle(self, *, wait: bool) -> list[tuple[EngineSequence, FinishReason]]:
        """Lets searches go on whose candidates were judged; see `FormedSequences`."""
        ended: list[tuple[EngineSequence, FinishReason]] = []
        for sequence in self._sequences:
            reason = sequence.search.settle(wait=wait)
            if reason != FinishReason.RUNNING:
                ended.append((sequence, reason))
        return ended

    def borrowed(self, room: Room) -> int:
        """Pages that the largest step of those that run borrows."""
        return room.of_searches(one.search for one in self._sequences)

    def missing(self) -> int:
        """Pages that all lack for their next steps."""
        return sum(map(self._missing, self.searching))

    @property
    def searching(self) -> list[EngineSequence]:
        """Those whose next step can be launched."""
        return [sequence for sequence in self._sequences if sequence.is_searching]

    def reserve(
        self,
        pool: PagePool,
        has_room: Callable[[Sequence[EngineSequence], int], bool],
    ) -> list[EngineSequence]:
        """Takes these pages; the sequences are launched then.

        Args:
            pool: of the pages.
            has_room: whether there is room for a step of each of some searches when so
                many more are taken. One that has begun since room was made may have
                none yet, or leave none to those before it: it waits.
        """
        sequences: list[EngineSequence] = []
        for sequence in self.searching:
            missing = self._missing(sequence)
            if has_room([*sequences, sequence], missing):
                sequence.search.segments.grow(pool.take(missing))
                sequence.launch(1)
                sequences.append(sequence)
        return sequences

    def give_back_dead(self, pool: PagePool) -> None:
        """Frees the pages that no beam of a search reads any more."""
        for sequence in self._sequences:
            if dead := sequence.search.dead:
                pool.give_back(dead)
                self.num_dead += len(dead)
                sequence.search.dead = []

    def _missing(self, sequence: EngineSequence) -> int:
        """A step feeds the last tokens chosen; a response begins on its own page."""
        fed = min(sequence.num_launched, sequence.limit - 1) - sequence.num_prompt
        return sequence.search.segments.missing(fed)
