"""`EngineProcess`: an engine in another process, for the tasks of one event loop."""

import asyncio
import contextlib
import logging
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from fdjax.engine.limits import Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import NOBODY, Waiting, check_queue
from fdjax.engine.request import Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import EngineDeadError
from fdjax.serve.apart import asking
from fdjax.serve.apart.increments import increments
from fdjax.serve.apart.line import Line
from fdjax.serve.apart.questions import Questions
from fdjax.serve.apart.wire import BEAT_S, Message
from fdjax.serve.claims import Claim, Claims
from fdjax.serve.switching import switch_often
from fdjax.serve.tickets import Submission, Ticket

_LOGGER = logging.getLogger(__name__)

# Of what is asked about the engine: nobody waits longer for new numbers.
_LOOK_S = 1.0
# A process that says nothing for so long does not go on, whatever it said before.
_SILENT_S = 10 * BEAT_S
# For a process that has closed its end to be gone, and to be asked how it ended.
_REAPED_S = 0.2


class EngineProcess:
    """A `RunningEngine`, and a `Queue`: it knows what waits as of the last step.

    All but `close` is for one event loop, which reads what comes. The threads of this
    process take turns as often as beside an `EngineThread`.

    Args:
        line: to the process.
        process: ended by `close`.
        ready: what it has said when it was ready.
    """

    def __init__(
        self, line: Line, process: "subprocess.Popen[bytes]", ready: Message
    ) -> None:
        switch_often()
        self._line = line
        self._process = process
        self._limits = QueueLimits(**ready.fields["limits"])
        self._statistics = asking.statistics_heard(ready.fields["statistics"])
        self._waiting = NOBODY
        self._claims = Claims(self)
        self._tickets: dict[int, Ticket] = {}
        self._others: set[int] = set()
        self._questions = Questions(line.send, self._claims.give_back)
        self._last_name = 0
        self._began_s: float | None = None
        self._heard_s: float | None = None
        self._dead_text: str | None = None
        self.error: BaseException | None = None
        self.num_made = 0

    @property
    def ended(self) -> bool:
        """See `RunningEngine`, as for all others."""
        return self._dead_text is not None

    @property
    def num_unfinished(self) -> int:
        """See above; of a search, its outputs are one."""
        return len(self._tickets) - len(self._others)

    @property
    def step_age_s(self) -> float:
        """See above; a process that does not even say so does not go on either."""
        if self._heard_s is None or self.ended:
            return 0.0
        now_s = time.monotonic()
        if self._began_s is not None:
            return now_s - self._began_s
        silent_s = now_s - self._heard_s
        return silent_s if silent_s > _SILENT_S else 0.0

    def statistics(self) -> EngineStatistics:
        """See above; as of the last `look`."""
        return self._statistics

    async def look(self) -> None:
        """See above; gives up where the process does not answer."""
        if self.ended:
            return
        self._attach()
        with contextlib.suppress(TimeoutError, EngineDeadError):
            async with asyncio.timeout(_LOOK_S):
                told = await self._questions.answered("look", {})
                self._statistics = asking.statistics_heard(told["statistics"])
                self.num_made = told["num_made"]

    def claim(self, load: Load, origin: Origin) -> AbstractContextManager[Claim]:
        """See above."""
        if self.ended:  # which is told by `add`
            return contextlib.nullcontext(Claim(load, origin))
        return self._claims.claim(load, origin)

    def check_queue(
        self, more: Load, origin: Origin | None = None, claimed: Waiting = NOBODY
    ) -> None:
        """See `queue_check`; the engine checks again, what it takes."""
        check_queue(self._limits, more, origin, waiting=self._waiting, claimed=claimed)

    async def add(
        self, submissions: Sequence[Submission], tickets: Sequence[Ticket], claim: Claim
    ) -> list[Request]:
        """See above."""
        if self._dead_text is not None:
            raise EngineDeadError(self._dead_text)
        self._attach()
        prompts, columns = asking.prompts_told(submissions)
        told = {
            "names": [self._named(ticket) for ticket in tickets],
            "prompts": prompts,
            "params": asking.params_told(submissions[0].params),
            "origin": asking.origin_told(claim.origin),
        }
        answer = await self._questions.answered("add", told, columns, claim)
        return [
            request
            for submission, max_tokens in zip(
                submissions, answer["max_tokens"], strict=True
            )
            for request in asking.requests_of(submission, max_tokens)
        ]

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """See above."""
        names = [one.sequence for one in tickets if one.sequence in self._tickets]
        for name in names:
            self._drop(name)
        if names:
            self._tell("abort", names)

    def resume(self, ticket: Ticket) -> None:
        """See above."""
        ticket.parked = False
        if ticket.sequence in self._tickets:
            self._tell("resume", [ticket.sequence])

    def close(self, *, seconds: float | None = None) -> bool:
        """See above; from any thread. The process is killed if it takes longer."""
        if not self.ended:
            self._end("the engine was shut down")
        self._line.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def _attach(self) -> None:
        self._line.attach(self._read)
        if self._heard_s is None:
            self._heard_s = time.monotonic()

    def _named(self, ticket: Ticket) -> list[int]:
        """New names of a ticket, and of the others that share its search."""
        names: list[int] = []
        for one in (ticket, *ticket.others):
            self._last_name += 1
            one.sequence = self._last_name
            self._tickets[one.sequence] = one
            names.append(one.sequence)
        self._others.update(names[1:])
        return names

    def _drop(self, name: int) -> None:
        self._tickets.pop(name, None)
        self._others.discard(name)

    def _tell(self, kind: str, names: Iterable[int]) -> None:
        self._line.send(Message(kind, {"names": [*names]}))

    def _read(self) -> None:
        """Takes what has come, on the loop."""
        try:
            for message in self._line.read():
                self._heard_s = time.monotonic()
                self._hear(message)
        except EOFError:
            self._lost()

    def _hear(self, message: Message) -> None:
        told = message.fields
        if "waiting" in told:
            self._waiting = asking.waiting_heard(told["waiting"])
        match message.kind:
            case "step":
                self._began_s = None
                self._take(message)
            case "answer":
                self._questions.take(told)
            case "beat":
                age_s = told["step_age_s"]
                self._began_s = time.monotonic() - age_s if age_s else None
            case "dead":
                self.error = EngineDeadError(told["text"])
                self._end(told["text"])
            case kind:
                raise AssertionError(kind)

    def _take(self, message: Message) -> None:
        """Puts what a step has made where tasks read it."""
        told, behind = message.fields, list[int]()
        self.num_made = told["num_made"]
        for name, admitted_s, num_cached in told.get("introductions", ()):
            if (ticket := self._tickets.get(name)) is not None:
                ticket.admitted_s, ticket.num_cached = admitted_s, num_cached
        for name, increment in increments(message):
            ticket = self._tickets.get(name)
            if ticket is None:  # aborted meanwhile
                continue
            ticket.num_put += len(increment.token_ids)
            ticket.put(increment)
            if increment.finish_reason is not None:
                self._drop(name)
            elif ticket.is_behind:
                ticket.parked = True
                behind.append(name)
        if behind:
            self._tell("park", behind)

    def _lost(self) -> None:
        """The process has closed its end: it has ended, or is about to."""
        self._line.detach()
        if self.ended:
            return
        text = f"the engine has failed ({self._how_it_ended()}); start it again"
        _LOGGER.error("%s", text)
        self.error = EngineDeadError(text)
        self._end(text)

    def _how_it_ended(self) -> str:
        try:
            return how_it_ended(self._process.wait(_REAPED_S))
        except subprocess.TimeoutExpired:
            return "its process closed the line"

    def _end(self, text: str) -> None:
        """Tells all who wait, on their loop."""
        self._dead_text = text
        tickets, self._tickets = self._tickets, {}
        self._others.clear()
        for ticket in tickets.values():
            ticket.to([(ticket, EngineDeadError(text))])
        self._questions.end(text)


def how_it_ended(status: int) -> str:
    """How an engine's process ended, in words.

    Args:
        status: as `subprocess` has it: below zero it is a signal's.
    """
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"
