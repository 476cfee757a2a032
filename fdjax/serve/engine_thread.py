"""An engine in a thread of its own, and the asyncio tasks that wait for its tokens."""

import contextlib
import dataclasses
import functools
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.request import Increment, Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.engine.step_clock import StepClock
from fdjax.errors import EngineDeadError
from fdjax.generate.params import SamplingParams
from fdjax.serve.claims import Claim, Claims
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.switching import switch_often
from fdjax.serve.tickets import Receiver, Submission, Ticket
from fdjax.serve.watcher import Watcher

_LOGGER = logging.getLogger(__name__)

# How often it is seen whether a step that should take longer has ended.
LOOK_S = 1e-3


class EngineThread:
    """Owns an engine: all that is done with it is done on one thread.

    From then on the threads of this process take turns more often: see `switching`.

    Args:
        engine: used by nothing else from now on.
        watcher: told what the thread does; nobody by default.

    Attributes:
        error: what ended the engine; `None` while it lives or if it was shut down.
        num_made: tokens that the engine has made.
    """

    def __init__(self, engine: ServingEngine, watcher: Watcher | None = None) -> None:
        self._engine = engine
        self._watcher = watcher
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tickets: dict[Any, Ticket] = {}
        self._claims = Claims(engine)
        # Whoever puts a command must know that it is read, or that nothing is any more.
        self._lock = threading.Lock()
        self._clock = StepClock()
        self._closing = False
        self._ended = False
        self.error: BaseException | None = None
        self.num_made = 0
        self._thread = threading.Thread(
            target=self._run, name="fdjax-engine", daemon=True
        )
        self._thread.start()

    @property
    def ended(self) -> bool:
        """It takes no more calls."""
        return self._ended

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._tickets)

    @property
    def step_age_s(self) -> float:
        """Seconds of the step under way; see `StepClock`."""
        return self._clock.age_s

    def claim(self, load: Load, origin: Origin) -> AbstractContextManager[Claim]:
        """Keeps room in the queue until `add`; see `Claims.claim`."""
        if self._ended:  # which is told by `add`
            return contextlib.nullcontext(Claim(load, origin))
        return self._claims.claim(load, origin)

    def statistics(self) -> EngineStatistics:
        """One look at what the engine has counted; the thread is not waited for."""
        return self._engine.statistics()

    def add(
        self,
        submissions: Sequence[Submission],
        tickets: Sequence[Ticket],
        claim: Claim,
        future: Future[list[Request]],
    ) -> None:
        """Lets the engine take all of some submissions, or none.

        Args:
            submissions: the prompts of one request.
            tickets: one for each sample of the first prompt, then of the next; of a
                beam search one, which has those of its other outputs.
            claim: their room, which they have from now on by themselves, and on
                whose behalf they are.
            future: gets the checked request of each ticket, or `RequestError`,
                `QueueFullError` or `EngineDeadError`, on the thread. Whoever gives up
                waiting for it calls `abort`.
        """

        def command() -> None:
            self._claims.give_back(claim)
            if not future.set_running_or_notify_cancel():
                return
            if self._ended:
                future.set_exception(self._dead())
                return
            try:
                future.set_result(self._add(submissions, tickets, claim.origin))
            except Exception as error:  # the caller's, who waits for it
                future.set_exception(error)

        self._tell(command)

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Ends calls, if they have not ended; what was added before is found."""
        self._tell(functools.partial(self._abort, tickets))

    def park(self, ticket: Ticket) -> None:
        """Makes no more of a call until `resume`; the thread does so by itself, too."""
        ticket.parked = True
        self._tell(functools.partial(self._park, ticket))

    def resume(self, ticket: Ticket) -> None:
        """Goes on with a call that was parked, as all of it was read."""
        ticket.parked = False
        self._tell(functools.partial(self._resume, ticket))

    def close(self, *, seconds: float | None = None) -> bool:
        """Ends all calls and the thread, once the step under way is done.

        Nothing that was launched runs any more then: programs may be gone next.

        Args:
            seconds: to wait for that; `None` waits for ever.

        Returns:
            Whether the thread has ended.
        """

        def command() -> None:
            self._closing = True

        self._tell(command)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _tell(self, command: Callable[[], None]) -> None:
        """Has the thread do something between two steps; at once if it has ended."""
        with self._lock:
            if not self._ended:
                self._commands.put(command)
                return
        command()

    def _run(self) -> None:
        switch_often()
        try:
            while not self._closing:
                self._hold()
                self._obey()
                if not self._closing and self._engine.has_work:
                    with self._clock.step():
                        increments = self._engine.step()
                    self._deliver(increments)
                if self._watcher is not None:
                    self._watcher.went_round(self.num_made)
        except BaseException as error:
            _LOGGER.exception("the engine has failed and takes no more requests")
            self.error = error
        self._end()
        self._wait()

    def _wait(self) -> None:
        """Waits for what was launched, of which nobody is told any more."""
        try:
            self._engine.wait()
        except RuntimeError:
            if self.error is None:  # else it was told
                _LOGGER.exception("the device failed in what was launched last")

    def _hold(self) -> None:
        """Waits as long as the device has work anyway."""
        while (spare_s := self._engine.spare_s) > 0:
            time.sleep(min(spare_s, LOOK_S))

    def _obey(self) -> None:
        """Does what was asked for; waits for it if there is nothing else to do."""
        if not self._engine.has_work:
            self._commands.get()()
        # No more than there are now: those who ask without end must not put off a step.
        for _ in range(self._commands.qsize()):
            if not self._closing:
                self._commands.get_nowait()()

    def _add(
        self,
        submissions: Sequence[Submission],
        tickets: Sequence[Ticket],
        origin: Origin,
    ) -> list[Request]:
        tokens = sum(
            len(submission.prompt) * len(submission.samples)
            for submission in submissions
        )
        self._engine.check_queue(Load(1, len(tickets), tokens), origin)
        prompts = [self._requests(submission) for submission in submissions]
        left = iter(tickets)
        try:
            for samples in prompts:
                for sequence in self._engine.add_samples(samples, origin):
                    ticket = next(left)
                    ticket.sequence = sequence
                    self._tickets[sequence] = ticket
        except BaseException:
            self._abort(tickets)
            raise
        return [request for samples in prompts for request in samples]

    def _requests(self, submission: Submission) -> list[Request]:
        """Of each sample; the prompt is checked, and kept, once."""
        first, *others = submission.samples
        request = self._engine.request(
            submission.index, submission.prompt, first, submission.grammar
        )
        if submission.programs is not None:
            request = dataclasses.replace(request, programs=submission.programs)
        samples = (one for one in others if isinstance(one, SamplingParams))
        return [request, *map(request.sampled, samples)]

    def _abort(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            if self._tickets.pop(ticket.sequence, None) is not None and not self._ended:
                self._engine.abort(ticket.sequence)

    def _park(self, ticket: Ticket) -> None:
        if ticket.sequence in self._tickets and not self._ended:
            self._engine.park(ticket.sequence)

    def _resume(self, ticket: Ticket) -> None:
        if ticket.sequence in self._tickets and not self._ended:
            self._engine.resume(ticket.sequence)

    def _deliver(self, increments: Sequence[tuple[Any, Increment]]) -> None:
        """Hands increments over, all those for one receiver by one call."""
        batches: dict[Receiver, list[tuple[Ticket, Increment]]] = defaultdict(list)
        for sequence, increment in increments:
            ticket = self._tickets.get(sequence)
            self.num_made += increment.num_made
            if ticket is None:  # aborted while the step was under way
                continue
            shares = ticket.shared(increment)
            for one, part in shares:
                one.admitted_s, one.num_cached = (
                    sequence.admitted_s,
                    sequence.num_cached,
                )
                one.num_put += len(part.token_ids)
            if increment.finish_reason is not None:
                del self._tickets[sequence]
            elif ticket.is_behind:
                ticket.parked = True
                self._engine.park(sequence)
            batches[ticket.to] += shares
        for receiver, batch in batches.items():
            if not receiver(batch):
                self._abort([ticket for ticket, _ in batch])

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.to([(ticket, self._dead())])
        if self._watcher is not None:
            self._watcher.ended(self._dead())

    def _dead(self) -> EngineDeadError:
        if self.error is None:
            return EngineDeadError("the engine was shut down")
        error = EngineDeadError(
            f"the engine has failed ({type(self.error).__name__}); start it again"
        )
        error.__cause__ = self.error
        return error
