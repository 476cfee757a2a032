"""`Prompts`: what the next call computes of prompts. Host only."""

from collections.abc import Collection, Iterator, Sequence

from fdjax.engine.buckets import USUAL_TOKENS, Buckets
from fdjax.engine.policy import PrefillOrder
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.turns import in_turn


class Prompts(Collection[EngineSequence]):
    """Running sequences whose prompts are not launched whole.

    Args:
        buckets: shapes of calls.
        order: see `StepPolicy`.
    """

    def __init__(self, buckets: Buckets, order: PrefillOrder) -> None:
        self._buckets = buckets
        self._order = order
        self._num_computed = 0
        # By sequence, the tokens of all prompts that are computed before its turn has
        # come for sure: those that were when it came, and as many more as it has
        # itself.
        self._sequences: dict[EngineSequence, int] = {}

    def __bool__(self) -> bool:
        """Some prompt has tokens that were not launched."""
        return bool(self._sequences)

    def __len__(self) -> int:
        """How many."""
        return len(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        """Whether a sequence is one of them."""
        return sequence in self._sequences

    def __iter__(self) -> Iterator[EngineSequence]:
        """All of them."""
        return iter(self._sequences)

    def mix(self, num_decoding: int) -> bool:
        """See `Buckets.mixes`."""
        return self._buckets.mixes(num_decoding)

    def add(self, sequence: EngineSequence) -> None:
        """Takes a sequence that was let in."""
        self._sequences[sequence] = self._num_computed + _left(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Forgets a sequence, if it is here."""
        self._sequences.pop(sequence, None)

    def chunks(
        self, room: int, *, num_decoding: int = 0, crowded: bool = False
    ) -> list[PromptChunk]:
        """What the next call computes, in turn: whole prompts, or parts.

        It is larger than usual for a long prompt that is first in turn, which is so
        done in one call; and in a crowd, which is served the sooner, the more rows are
        decoded at once.

        Args:
            room: tokens that the call may have.
            num_decoding: of them, those of rows that decode.
            crowded: others wait for a row; see `Buckets.call_tokens` too.

        Returns:
            The chunks, which count as launched.
        """
        if not self._sequences or room <= num_decoding:
            return []
        sequences = self._in_turn()[: self._buckets.prefill_rows]
        if not crowded:
            room = min(room, max(USUAL_TOKENS, num_decoding + _left(sequences[0])))
        waiting = sum(map(_left, sequences))
        count = min(num_decoding + waiting, room)
        count = self._buckets.call_tokens(
            count, num_decoding=num_decoding, crowded=crowded
        )
        left = min(count, room) - num_decoding
        del sequences[self._buckets.prompts_of(count) :]
        sizes = self._sizes(sequences, left)
        return [
            self._take(sequence, size)
            for sequence, size in zip(sequences, sizes, strict=True)
            if size
        ]

    def _sizes(self, sequences: Sequence[EngineSequence], room: int) -> list[int]:
        """Tokens that each has of a call, in turn.

        What came first may be longer than the call: then it leaves half of the room to
        those that are not, as long as there are any.
        """
        whole, has_half = room, False
        sizes: list[int] = []
        for sequence in sequences:
            size = min(_left(sequence), room)
            if self._order == "fcfs" and _left(sequence) > whole:
                size = 0 if has_half else -(-room // 2)
                has_half = True
            sizes.append(size)
            room -= size
        for place, sequence in enumerate(sequences):  # what nobody else wants
            more = min(_left(sequence) - sizes[place], room)
            sizes[place] += more
            room -= more
        return sizes

    def _take(self, sequence: EngineSequence, size: int) -> PromptChunk:
        chunk = PromptChunk(
            sequence, sequence.num_prefilled, sequence.num_prefilled + size
        )
        self._num_computed += size
        sequence.num_prefilled = chunk.stop
        if chunk.is_last:
            sequence.launch(chunk.stop + 1)
            self.remove(sequence)
        return chunk

    def _in_turn(self) -> list[EngineSequence]:
        if self._order == "fcfs":
            return in_turn(self._sequences)
        return in_turn(self._sequences, self._sequences.__getitem__)


def _left(sequence: EngineSequence) -> int:
    """Tokens of a prompt that were not launched."""
    return len(sequence.tokens) - sequence.num_prefilled
