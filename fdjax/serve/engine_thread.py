"""An engine in a thread of its own, and the asyncio tasks that wait for its tokens."""

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Increment, Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import EngineDeadError
from fdjax.generate.params import SamplingParams

_LOGGER = logging.getLogger(__name__)


class ServingEngine(Protocol):
    """What serving needs of an engine.

    A job is a hashable handle; `admitted_s` says when it was let in, as that of `Job`.
    """

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams,
        grammar: Grammar | None = None,
    ) -> Request:
        """A checked request; `RequestError` where it cannot be served."""
        ...

    def add(self, request: Request, *, priority: int = 0, salt: bytes = b"") -> Any:
        """Queues a request, gives its job; `QueueFullError` where too many wait."""
        ...

    def abort(self, job: Any) -> None:
        """Ends a job, if it has not ended."""
        ...

    def step(self) -> list[tuple[Any, Increment]]:
        """Does some work; gives what came of it, which may be nothing."""
        ...

    @property
    def has_work(self) -> bool:
        """Some job has not ended."""
        ...

    def statistics(self) -> EngineStatistics:
        """One look at what was counted; alone of these methods for any thread."""
        ...


@dataclass(frozen=True)
class Call:
    """A request on its way to the engine.

    Attributes:
        index: place of the prompt in the caller's list.
        prompt: token ids.
        params: how to continue it.
        priority: lower ones go first.
        salt: calls of different salts share no cached prefixes.
        grammar: what the output may be.
    """

    index: int
    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    salt: bytes = b""
    grammar: Grammar | None = None


@dataclass(eq=False)
class Ticket:
    """A call that a task of `loop` waits for.

    Attributes:
        loop: where `inbox` is read.
        inbox: increments as they come, or the error that ends them.
        job: the engine's handle, known to the engine's thread alone.
        admitted_s: when the engine let it in, by `time.monotonic`; known with the first
            increment.
    """

    loop: asyncio.AbstractEventLoop
    inbox: asyncio.Queue[Increment | EngineDeadError] = field(
        default_factory=asyncio.Queue[Increment | EngineDeadError]
    )
    job: Any = None
    admitted_s: float | None = None


class EngineThread:
    """Owns an engine: all that is done with it is done on one thread.

    Args:
        engine: used by nothing else from now on.

    Attributes:
        error: what ended the engine; `None` while it lives or if it was shut down.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tickets: dict[Any, Ticket] = {}
        # Whoever puts a command must know that it is read, or that nothing is any more.
        self._lock = threading.Lock()
        self._closing = False
        self._ended = False
        self.error: BaseException | None = None
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

    def statistics(self) -> EngineStatistics:
        """One look at what the engine has counted; the thread is not waited for."""
        return self._engine.statistics()

    def add(
        self, calls: Sequence[Call], tickets: Sequence[Ticket]
    ) -> Future[list[Request]]:
        """Lets the engine take all of some calls, or none.

        Returns:
            The checked requests, or `RequestError`, `QueueFullError` or
            `EngineDeadError`. Whoever gives up waiting for them calls `abort`.
        """
        future: Future[list[Request]] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self._ended:
                future.set_exception(self._dead())
                return
            try:
                future.set_result(self._add(calls, tickets))
            except Exception as error:  # the caller's, who waits for it
                future.set_exception(error)

        self._tell(command)
        return future

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Ends calls, if they have not ended; what was added before is found."""
        self._tell(functools.partial(self._abort, tickets))

    def close(self) -> None:
        """Ends all calls and the thread, once the step under way is done."""

        def command() -> None:
            self._closing = True

        self._tell(command)
        self._thread.join()

    def _tell(self, command: Callable[[], None]) -> None:
        with self._lock:
            if not self._ended:
                self._commands.put(command)
                return
        command()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._obey()
                if not self._closing and self._engine.has_work:
                    self._deliver(self._engine.step())
        except BaseException as error:
            _LOGGER.exception("the engine has failed and takes no more requests")
            self.error = error
        self._end()

    def _obey(self) -> None:
        """Does what was asked for; waits for it if there is nothing else to do."""
        if not self._engine.has_work:
            self._commands.get()()
        with contextlib.suppress(queue.Empty):
            while not self._closing:
                self._commands.get_nowait()()

    def _add(self, calls: Sequence[Call], tickets: Sequence[Ticket]) -> list[Request]:
        requests = [
            self._engine.request(call.index, call.prompt, call.params, call.grammar)
            for call in calls
        ]
        try:
            for call, request, ticket in zip(calls, requests, tickets, strict=True):
                ticket.job = self._engine.add(
                    request, priority=call.priority, salt=call.salt
                )
                self._tickets[ticket.job] = ticket
        except BaseException:
            self._abort(tickets)
            raise
        return requests

    def _abort(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            if self._tickets.pop(ticket.job, None) is not None and not self._ended:
                self._engine.abort(ticket.job)

    def _deliver(self, increments: Sequence[tuple[Any, Increment]]) -> None:
        """Hands increments over, all those of one loop by one call."""
        batches: dict[Any, list[tuple[Ticket, Increment]]] = defaultdict(list)
        for job, increment in increments:
            ticket = self._tickets.get(job)
            if ticket is None:  # aborted while the step was under way
                continue
            ticket.admitted_s = job.admitted_s
            if increment.finish_reason is not None:
                del self._tickets[job]
            batches[ticket.loop].append((ticket, increment))
        for loop, batch in batches.items():
            if not _post(loop, batch):
                self._abort([ticket for ticket, _ in batch])

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            _post(ticket.loop, [(ticket, self._dead())])

    def _dead(self) -> EngineDeadError:
        if self.error is None:
            return EngineDeadError("the engine was shut down")
        error = EngineDeadError(
            f"the engine has failed ({type(self.error).__name__}); start it again"
        )
        error.__cause__ = self.error
        return error


def _post(
    loop: asyncio.AbstractEventLoop,
    batch: Sequence[tuple[Ticket, Increment | EngineDeadError]],
) -> bool:
    """Puts what has come where its tasks read it; whether the loop still runs."""
    try:
        loop.call_soon_threadsafe(_put, batch)
    except RuntimeError:  # the loop is closed
        return False
    return True


def _put(batch: Sequence[tuple[Ticket, Increment | EngineDeadError]]) -> None:
    for ticket, item in batch:
        ticket.inbox.put_nowait(item)
