"""`Pipeline`: launches what is next, and reads what was launched before."""

import time
from collections import deque
from collections.abc import Sequence

from fdjax.engine.awaited_beams import AwaitedBeams
from fdjax.engine.beam_batches import padded_count
from fdjax.engine.executor import AnyAwaited, Executor
from fdjax.engine.hold import Hold
from fdjax.engine.parking import Parking
from fdjax.engine.request import Increment
from fdjax.engine.results import ending
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.plan import SERVING_PLANS

# Steps whose launches are queued when the host waits for those of the one before: one,
# so that there is no gap, and no more, as what arrives meanwhile waits for them all.
LAUNCHES_AHEAD = 1


class Pipeline:
    """The steps of an engine, none of which waits for what it has launched itself.

    Args:
        scheduler: says what is next.
        executor: launches it.
        parking: the sequences to be parked.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, parking: Parking
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._parking = parking
        self._unread: deque[AnyAwaited] = deque()
        self._hold = Hold(executor.budget)

    @property
    def spare_s(self) -> float:
        """See `Engine.spare_s`."""
        if self._scheduler.num_waiting:  # whoever arrives waits, too
            return 0.0
        return self._hold.seconds(self._unread)

    def clear(self) -> None:
        """Forgets what was launched."""
        self._unread.clear()

    def wait(self) -> None:
        """Waits for what was launched and nobody has read."""
        for launch in self._unread:
            launch.wait()

    def step(self) -> list[tuple[EngineSequence, Increment]]:
        """See `Engine.step`."""
        increments = self._settle()
        began_s = self._executor.pace.now()
        self._let_in()
        launched = self._prompts_alone()
        self._make_room()
        launched += self._mixed() if self._mixes else self._decode()
        launched += self._search()
        self._scheduler.room.end_step()
        self._hold.launched(self._executor.pace.now() - began_s)
        while len(self._unread) > LAUNCHES_AHEAD * launched:
            increments += self._read(self._unread.popleft())
        return increments

    def _settle(self) -> list[tuple[EngineSequence, Increment]]:
        """Asks matchers what may follow; waits for them if the device has no work."""
        ended = self._scheduler.settle(wait=not self._unread)
        self._scheduler.come_back()
        return [
            (sequence, ending(sequence.request, reason)) for sequence, reason in ended
        ]

    def _let_in(self) -> None:
        self._compact()
        admitted = self._scheduler.admit()
        if admitted:
            now_s = time.monotonic()
            for sequence in admitted:
                sequence.let_in(now_s)
            level = max(sequence.plan_level for sequence in self._scheduler.running)
            self._executor.use(SERVING_PLANS[level])

    def _compact(self) -> None:
        source = self._scheduler.compaction()
        if source is not None:
            self._executor.exchange(source)

    @property
    def _mixes(self) -> bool:
        """The next call has prompts, and a token of each row that decodes."""
        scheduler = self._scheduler
        has_prompts = self._executor.mixed and bool(scheduler.prompts)
        return has_prompts and scheduler.prompts.mix(len(scheduler.decoding))

    @property
    def _num_steps(self) -> int:
        """Decode steps of the next call."""
        return 1 if self._mixes else self._executor.pace.steps

    def _prompts_alone(self) -> int:
        """Launches what it says, and tells how many calls, as do the next three."""
        if self._mixes:
            return 0
        self._make_room_for_prompts()
        scheduler = self._scheduler
        prompts, before = scheduler.prompts, len(self._unread)
        room = self._executor.budget.tokens(0, others_wait=scheduler.any_generating)
        # Each call's pages are no room for the next one.
        while chunks := scheduler.chunks(
            min(room, scheduler.room.most_tokens(prompts))
        ):
            room -= sum(chunk.size for chunk in chunks)
            self._clear(scheduler.room.of_call(0, chunks))
            self._unread += self._executor.extend([], chunks)
        return len(self._unread) - before

    def _mixed(self) -> int:
        scheduler = self._scheduler
        others_wait = scheduler.any_generating
        sequences = scheduler.reserve(1)
        room = min(
            self._executor.budget.tokens(len(sequences), others_wait=others_wait),
            scheduler.room.most_tokens(scheduler.prompts),
        )
        chunks = scheduler.chunks(
            room, num_decoding=len(sequences), crowded=scheduler.num_waiting > 0
        )
        self._clear(scheduler.room.of_call(len(sequences), chunks))
        launches = self._executor.extend(sequences, chunks)
        self._unread += launches
        return len(launches)

    def _decode(self) -> int:
        scheduler = self._scheduler
        sequences = scheduler.reserve(self._executor.pace.steps)
        if sequences:
            self._clear(scheduler.room.of_rows(scheduler.num_rows))
            self._unread.append(self._executor.decode(sequences))
        return bool(sequences)

    def _search(self) -> int:
        scheduler, before = self._scheduler, len(self._unread)
        searches = scheduler.beams.reserve(scheduler.pool, self._has_room)
        for batch in self._executor.beams.batches(searches, fits=self._fits):
            count = padded_count(len(batch))
            self._clear(self._borrowed(batch[:1], count=count))
            self._unread.append(self._executor.search(batch))
        return len(self._unread) - before

    def _has_room(self, searches: Sequence[EngineSequence], count: int) -> bool:
        """Whether there is room for a step of each when so many pages are taken."""
        return self._scheduler.room.can_clear(self._borrowed(searches) + count)

    def _fits(self, search: EngineSequence, count: int) -> bool:
        """There is room for a call of so many that are like one."""
        borrowed = self._borrowed([search], count=count)
        return self._scheduler.room.can_clear(borrowed)

    def _borrowed(self, searches: Sequence[EngineSequence], *, count: int = 1) -> int:
        groups = (one.search for one in searches)
        return self._scheduler.room.of_searches(groups, count=count)

    def _make_room(self) -> None:
        """Frees pages for the next launch, and rows, by putting sequences back."""
        self._put_back_lacking()
        gave_way = self._scheduler.give_way()
        if self._parking.park() or gave_way:
            self._put_back_lacking()  # another kind of call may come next
        # A search that was put back begins anew: what it has on the way is nobody's.
        self._unread = deque(
            launch.of_seated() if isinstance(launch, AwaitedBeams) else launch
            for launch in self._unread
        )

    def _make_room_for_prompts(self) -> None:
        """As `_make_room`, for calls with prompts alone."""
        scheduler = self._scheduler
        room, prompts = scheduler.room, scheduler.prompts
        while (
            room.borrows
            and prompts
            and not room.can_clear(room.least_of_prompts(prompts))
        ):
            self._put_back_for_room()

    def _put_back_lacking(self) -> None:
        scheduler = self._scheduler
        while scheduler.lacking(self._num_steps, borrowed=self._num_borrowed):
            if scheduler.lacking(self._num_steps):
                scheduler.preempt()
            else:
                self._put_back_for_room()

    @property
    def _num_borrowed(self) -> int:
        """Pages that the smallest next call borrows."""
        scheduler, room = self._scheduler, self._scheduler.room
        if not room.borrows:
            return 0
        searches = scheduler.beams.borrowed(room)
        if self._mixes:
            prompts, num_decoding = scheduler.prompts, len(scheduler.decoding)
            return max(searches, room.least_of_prompts(prompts, num_decoding))
        return max(searches, room.of_rows(scheduler.num_rows))

    def _put_back_for_room(self) -> None:
        """Fewer rows then need less room, if they are the first ones."""
        self._scheduler.preempt()
        self._scheduler.room.num_put_back += 1
        self._compact()

    def _clear(self, num_pages: int) -> None:
        """Has the KV array's last pages free when what is launched next runs."""
        scheduler = self._scheduler
        moves = scheduler.room.clear(num_pages, scheduler.running)
        if moves:
            self._executor.move(moves)

    def _read(self, launch: AnyAwaited) -> list[tuple[EngineSequence, Increment]]:
        increments = self._executor.read(launch)
        self._scheduler.beams.give_back_dead(self._scheduler.pool)
        for sequence, increment in increments:
            if not sequence.is_search:  # whose pages hold the prompt alone
                sequence.tokens += increment.token_ids
                if sequence.row is not None:
                    self._scheduler.prefixes.remember(sequence)
            if increment.finish_reason is not None:
                self._scheduler.end(sequence)
            elif sequence.matcher is not None:
                sequence.matcher.advance(increment.token_ids[-1])
        return increments
