"""`Prompts`: what the next call computes of prompts. Host only."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fdjax.engine.buckets import USUAL_TOKENS, Buckets
from fdjax.engine.policy import PrefillOrder
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.turns import in_turn


@dataclass
class _Age:
    """How long a prompt has waited for others.

    Attributes:
        length: its own tokens when it came.
        overtaken: tokens of prompts that came later, computed since then.
        passed: the last call had none of its tokens.
    """

    length: int
    overtaken: int = 0
    passed: bool = False

    @property
    def is_due(self) -> bool:
        """It waits for none of them any more."""
        return self.overtaken >= self.length


class Prompts(Collection[EngineSequence]):
    """Running sequences whose prompts are not launched whole.

    Args:
        buckets: shapes of calls.
        order: see `StepPolicy`.

    Attributes:
        order: the same; another one holds from the next call on.
    """

    def __init__(self, buckets: Buckets, order: PrefillOrder) -> None:
        self._buckets = buckets
        self.order = order
        # A prompt that would fit into a call gave way in the last one, and had nothing.
        self._is_one_left_out = False
        # In the order in which they were let in.
        self._sequences: dict[EngineSequence, _Age] = {}

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
        self._sequences[sequence] = _Age(_left(sequence))

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
        sequences = self._in_turn()
        if not crowded:
            room = min(room, max(USUAL_TOKENS, num_decoding + _left(sequences[0])))
        most = self._buckets.prefill_rows
        sizes, gave_way = self._shares(sequences, room - num_decoding, most)
        wanted = sum(sizes.values())
        count = self._buckets.call_tokens(
            num_decoding + wanted, num_decoding=num_decoding, crowded=crowded
        )
        left, most = min(count, room) - num_decoding, self._buckets.prompts_of(count)
        if wanted > left or len(sizes) > most:  # than the call has room for
            sizes, gave_way = self._shares(sequences, left, most)
        self._grow_older(sizes)
        self._is_one_left_out = not gave_way <= sizes.keys()
        return [self._take(sequence, size) for sequence, size in sizes.items()]

    def _shares(
        self, sequences: Sequence[EngineSequence], room: int, most: int
    ) -> tuple[dict[EngineSequence, int], set[EngineSequence]]:
        """Who has how much of a call; the more urgent ones come first.

        Args:
            sequences: in turn.
            room: for prompts, in the call.
            most: prompts of the call.

        Returns:
            The tokens of those that have some, and those that would fit into the call
            but leave half of it to shorter ones.
        """
        sizes: dict[EngineSequence, int] = {}
        gave_way: set[EngineSequence] = set()
        for _, alike in itertools.groupby(sequences, lambda one: one.priority):
            if room <= 0 or len(sizes) == most:
                break
            group = [*alike]
            longest = self._longest(group, room)
            gave_way |= {one for one in group if longest < _left(one) <= room}
            group = _taking_part(group, longest, most - len(sizes))
            shares = _sizes(group, room, longest)
            room -= sum(shares)
            each = zip(group, shares, strict=True)
            sizes |= {sequence: size for sequence, size in each if size}
        return sizes, gave_way

    def _longest(self, group: Sequence[EngineSequence], room: int) -> int:
        """Tokens above which a prompt leaves half of a call to those that have fewer.

        As many as the call, for a prompt that came first goes first. But those that fit
        into half of a call wait for one call of longer ones at a time; and then one
        that has been left out for them has its turn.

        Args:
            group: of one priority, in turn.
            room: for these, in the call.
        """
        if self.order != "fcfs":
            return max(map(_left, group))
        half = room // 2
        if self._is_one_left_out:
            return room
        passed = (one for one in group if self._sequences[one].passed)
        return half if any(_left(one) <= half for one in passed) else room

    def _take(self, sequence: EngineSequence, size: int) -> PromptChunk:
        chunk = PromptChunk(
            sequence, sequence.num_prefilled, sequence.num_prefilled + size
        )
        sequence.num_prefilled = chunk.stop
        if chunk.is_last:
            sequence.launch(chunk.stop + 1)
            self.remove(sequence)
        return chunk

    def _grow_older(self, sizes: Mapping[EngineSequence, int]) -> None:
        """Counts tokens that a call computes for those that came before."""
        later = 0
        for sequence, age in reversed(self._sequences.items()):
            size = sizes.get(sequence, 0)
            age.overtaken += later
            age.passed = not size
            later += size

    def _in_turn(self) -> list[EngineSequence]:
        if self.order == "fcfs":
            return in_turn(self._sequences)
        return in_turn(self._sequences, self._left_unless_due)

    def _left_unless_due(self, sequence: EngineSequence) -> int:
        return 0 if self._sequences[sequence].is_due else _left(sequence)


def _taking_part(
    group: Sequence[EngineSequence], longest: int, most: int
) -> list[EngineSequence]:
    """Those in turn that a call has room for: of the long ones the first.

    Others that are long come last. The first one takes what nobody else wants, so that
    it is among them, however many are before it.
    """
    long = [one for one in group if _left(one) > longest]
    others = set(long[1:])
    ordered = sorted(group, key=others.__contains__)
    part = ordered[:most]
    if long and long[0] not in part:
        part[-1] = long[0]
    return part


def _sizes(sequences: Sequence[EngineSequence], room: int, longest: int) -> list[int]:
    """Tokens that each has of a call, in turn.

    What came first may be longer than `longest`: then it leaves half of the room to
    those that are not, as long as there are any.
    """
    has_half = False
    sizes: list[int] = []
    for sequence in sequences:
        size = min(_left(sequence), room)
        if _left(sequence) > longest:
            size = 0 if has_half else -(-room // 2)
            has_half = True
        sizes.append(size)
        room -= size
    for place, sequence in enumerate(sequences):  # what nobody else wants
        more = min(_left(sequence) - sizes[place], room)
        sizes[place] += more
        room -= more
    return sizes


def _left(sequence: EngineSequence) -> int:
    """Tokens of a prompt that were not launched."""
    return len(sequence.tokens) - sequence.num_prefilled
