"""`Scheduler`: which sequences hold rows and pages, and what runs next. Host only."""

from fdjax.engine.admission import Admission
from fdjax.engine.away import AwaySequences
from fdjax.engine.beam_searches import BeamSearches
from fdjax.engine.borrowing import NOTHING_BORROWED, Borrowing
from fdjax.engine.buckets import Buckets
from fdjax.engine.formed import FormedSequences
from fdjax.engine.policy import PrefillOrder, StepPolicy
from fdjax.engine.prefixes import Prefixes
from fdjax.engine.prompts import Prompts
from fdjax.engine.room import Room
from fdjax.engine.rows import FreeRows
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.turns import in_turn
from fdjax.engine.waiting import WaitingSequences
from fdjax.generate.stopping import FinishReason
from fdjax.memory.pages import PagePool

# Tokens that a sequence makes before it gives way for fairness: computing it anew is
# little.
_QUANTUM = 32


class Scheduler:
    """Sequences that wait, and sequences that hold a row and pages.

    A sequence is let in when a row is free and its tokens' pages are; pages for what it
    makes are taken step by step. When they run out, the sequence that is last in order
    (`in_turn`) goes back to the queue and is computed anew later: a full KV array slows
    requests down, and fails none. So does a sequence of whoever holds the most rows,
    when somebody waits who holds fewer.

    Args:
        pool: the pages.
        buckets: shapes; the last of its rows is how many there are.
        page_size: tokens of a page.
        caching: pages of earlier requests may be found and shared.
        gathering: decode calls copy their pages, and there is room for all once.
        order: of prompts.
        borrowing: pages of the pool that calls overwrite; `room` is for that.
        max_num_beams: rows that beam searches may hold together; all by default.
    """

    def __init__(
        self,
        pool: PagePool,
        buckets: Buckets,
        *,
        page_size: int,
        caching: bool,
        gathering: bool,
        order: PrefillOrder = StepPolicy.prefill_order,
        borrowing: Borrowing = NOTHING_BORROWED,
        max_num_beams: int | None = None,
    ) -> None:
        self.room = Room(pool, buckets, borrowing, page_size=page_size)
        self.pool = pool
        self.running: list[EngineSequence] = []
        self.formed = FormedSequences()
        num_rows = buckets.rows[-1]
        self.beams = BeamSearches(num_rows if max_num_beams is None else max_num_beams)
        self.num_preemptions = 0
        self.prefixes = Prefixes(pool, page_size=page_size, caching=caching)
        self._page_size = page_size
        self.waiting = WaitingSequences()
        self.away = AwaySequences()
        self.shares = self.waiting.shares
        self._rows = FreeRows(buckets.rows)
        self._admission = Admission(
            self.waiting,
            self._rows,
            self.beams,
            self.room,
            pool,
            num_rows=num_rows,
            page_size=page_size,
            gathering=gathering,
        )
        self.prompts = Prompts(buckets, order)

    @property
    def has_work(self) -> bool:
        """Some sequence runs, waits or comes back; parked ones do not count."""
        return bool(self.running or self.num_waiting or self.away.any_returning)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a row."""
        return self.waiting.load.samples

    def add(self, sequence: EngineSequence) -> None:
        """Puts a sequence into the queue."""
        self.waiting.push(sequence)

    def end(self, sequence: EngineSequence) -> None:
        """Takes a sequence out, from wherever it is; its row and pages are free."""
        sequence.ended = True
        if sequence in self.away:
            self.away.remove(sequence)
            self.formed.remove(sequence)
        elif sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self._release(sequence)
            self.formed.remove(sequence)

    def clear(self) -> list[EngineSequence]:
        """Takes all sequences out, forgets what pages hold, and returns them."""
        sequences = [*self.running, *self.waiting, *self.away]
        for sequence in sequences:
            self.end(sequence)
        self.pool.forget()
        return sequences

    def admit(self) -> list[EngineSequence]:
        """Gives rows and pages to those that wait, in turn, while there are.

        Returns:
            The sequences let in.
        """
        admitted: list[EngineSequence] = []
        self._admission.begin()
        if self.away.any_on_way:  # nobody overtakes them meanwhile
            return admitted
        borrowed = 0
        while sequence := self._admission.next():
            found = self.prefixes.found(sequence)
            if found is None:
                missing = self._pages_for(len(sequence.tokens)) - sequence.num_awaited
                self._admission.pass_over(sequence, missing)
                continue
            if not admitted:
                others = self.prompts, len(self.decoding)
                borrowed = self.room.least_of_prompts(*others)
            least = self.room.least(sequence.request, num_rows=len(self.running) + 1)
            borrowed = max(borrowed, least)
            running = self.running
            if not self._admission.seat(sequence, found, running, borrowed=borrowed):
                self._admission.keep_out(sequence)
                break
            self._join(sequence, num_found=len(found))
            admitted.append(sequence)
        return admitted

    def chunks(
        self, room: int, *, num_decoding: int = 0, crowded: bool = False
    ) -> list[PromptChunk]:
        """See `Prompts.chunks`."""
        chunks = self.prompts.chunks(room, num_decoding=num_decoding, crowded=crowded)
        for chunk in chunks:
            self.room.take(chunk)
            self.prefixes.compute(chunk.sequence)
        return chunks

    @property
    def decoding(self) -> list[EngineSequence]:
        """Sequences that the next decode step has a token of."""
        return [sequence for sequence in self.running if sequence.is_decoding]

    @property
    def any_generating(self) -> bool:
        """Some sequence waits for its next token: see `EngineSequence.goes_on`."""
        return any(sequence.goes_on for sequence in self.running)

    @property
    def num_rows(self) -> int:
        """Of the batch, up to the last one that a sequence holds."""
        return self._rows.end

    def settle(self, *, wait: bool) -> list[tuple[EngineSequence, FinishReason]]:
        """See `FormedSequences.settle`; the sequences returned have ended."""
        ended = self.formed.settle(wait=wait) + self.beams.settle(wait=wait)
        for sequence, _ in ended:
            self.end(sequence)
        return ended

    def lacking(self, num_steps: int, *, borrowed: int = 0) -> bool:
        """Whether pages are too few for `num_steps` more steps of all that decode.

        After them `borrowed` pages must be free.
        """
        most = self._pages_for(num_steps) + 1
        num_free = self.pool.num_free - self.room.num_promised - borrowed
        if most * self._rows.num_held <= num_free:
            return False
        wanted = sum(self._missing(sequence, num_steps) for sequence in self.decoding)
        return wanted + self.beams.missing() > num_free

    def preempt(self) -> EngineSequence:
        """Puts the running sequence that is last in order back into the queue."""
        return self._put_back(in_turn(self.running)[-1])

    def giving_way(self) -> EngineSequence | None:
        """The running sequence whose place whoever waits first should have, if one."""
        waiting = self._admission.kept_out
        if waiting is None or waiting.ended:
            return None
        sequences = [
            sequence
            for sequence in self.waiting.outweighing(self.running, waiting)
            if len(sequence.tokens) - sequence.num_let_in >= _QUANTUM
        ]
        return in_turn(sequences)[-1] if sequences else None

    def give_way(self) -> bool:
        """Puts that sequence back into the queue; whether there was one."""
        sequence = self.giving_way()
        if sequence is not None:
            self._put_back(sequence)
            self._admission.kept_out = None
        return sequence is not None

    def reserve(self, num_steps: int) -> list[EngineSequence]:
        """Takes the pages of `num_steps` more steps; `lacking` has said that it can.

        Returns:
            The sequences that the next launch decodes.
        """
        sequences = self.decoding
        for sequence in sequences:
            steps = sequence.steps_of(num_steps)
            if (
                sequence.num_launched - 1 + steps
                > len(sequence.pages) * self._page_size
            ):
                sequence.pages += self.pool.take(self._missing(sequence, num_steps))
            sequence.launch(steps)
        return sequences

    def compaction(self) -> list[int] | None:
        """See `FreeRows.compact`."""
        return self._rows.compact(self.running)

    def _missing(self, sequence: EngineSequence, num_steps: int) -> int:
        """Pages a sequence lacks for its part of `num_steps` more steps."""
        in_kv = sequence.num_launched - 1 + sequence.steps_of(num_steps)
        needed = self._pages_for(min(in_kv, sequence.request.num_kv_tokens))
        return max(needed - len(sequence.pages), 0)

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)

    def _join(self, sequence: EngineSequence, *, num_found: int) -> None:
        """Has a sequence run that has its row."""
        self.running.append(sequence)
        self.prompts.add(sequence)
        self.formed.add(sequence)
        self.beams.add(sequence)
        self.prefixes.seated(sequence, num_found)

    def leave(self, sequence: EngineSequence, *, parked: bool) -> None:
        """Takes a sequence's row and pages, or its place in the queue; it is away then.

        Args:
            sequence: that has not ended.
            parked: see `AwaySequences`.
        """
        if sequence.row is not None:
            self._release(sequence)
        elif sequence not in self.away:
            self.waiting.remove(sequence)
        self.away.add(sequence, parked=parked)

    def come_back(self) -> None:
        """Puts those into the queue that were away, and whose tokens were all read."""
        for sequence in self.away.returned():
            self.formed.remove(sequence)
            sequence.wait()
            self.waiting.put_back(sequence)

    def _release(self, sequence: EngineSequence) -> None:
        """Takes a running sequence's row and pages; it is in no queue."""
        assert sequence.row is not None
        self.prefixes.released(sequence)
        self.pool.give_back(sequence.group.leave())
        self.pool.give_back(sequence.pages)
        self._rows.give_back(sequence)
        self.running.remove(sequence)
        self.prompts.remove(sequence)
        self.beams.remove(sequence)
        self.waiting.unseated(sequence)
        self.room.promise(sequence, 0)
        sequence.pages, sequence.row = [], None

    def _put_back(self, sequence: EngineSequence) -> EngineSequence:
        self.leave(sequence, parked=False)
        self.num_preemptions += 1
        self.come_back()
        return sequence
