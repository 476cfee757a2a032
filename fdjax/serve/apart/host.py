"""The engine's process: serves one front, and ends with it."""

import asyncio
import dataclasses
import functools
import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fdjax.engine.limits import NOTHING
from fdjax.engine.request import Request
from fdjax.serve.apart import asking
from fdjax.serve.apart.teller import ApartEngine, FarTicket, Teller
from fdjax.serve.apart.wire import AT_ONCE, BEAT_S, Message, Messages
from fdjax.serve.claims import Claim
from fdjax.serve.grammars import Grammars
from fdjax.serve.idle_memory import IDLE_SECONDS, IdleMemory, give_back
from fdjax.serve.in_thread import InThread
from fdjax.serve.tickets import Ticket
from fdjax.serve.tokenizer import Tokenizer

_LOGGER = logging.getLogger(__name__)

# For the step under way, when the front has gone.
_CLOSING_S = 3.0


@dataclass(frozen=True)
class Served:
    """A model that is ready, in the engine's process.

    Attributes:
        engine: whoever steps it is alone.
        tokenizer: see `InThread`, as for the next.
        grammars: see above.
        facts: of the model, for the front, as JSON has them.
    """

    engine: ApartEngine
    tokenizer: Tokenizer | None
    grammars: Grammars | None
    facts: dict[str, Any]


async def host(connection: socket.socket, load: Callable[[], Served]) -> None:
    """Serves the front at the other end, until it goes: this process ends then.

    Args:
        connection: to the front.
        load: makes a model ready; what it raises is raised here.
    """
    serving = Host(connection)
    asyncio.get_running_loop().add_reader(connection.fileno(), serving.read)
    serving.begin(await asyncio.to_thread(load))
    await serving.beat()


class Host:
    """Does what the front asks for.

    Args:
        connection: to the front.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages = Messages()
        self._tickets: dict[int, FarTicket] = {}
        self._adding: dict[int, asyncio.Task[None]] = {}
        self._running: InThread | None = None
        self._num_begun = 0
        self._deeds: dict[str, Callable[[Message], None]] = {
            "add": self._add,
            "abort": self._abort,
            "park": self._park,
            "resume": self._resume,
            "look": self._look,
        }

    def begin(self, served: Served) -> None:
        """Takes requests from now on."""
        engine = served.engine
        self._teller = Teller(
            self._socket, engine, lambda name: self._tickets.pop(name, None)
        )
        self._running = InThread(
            engine, served.tokenizer, served.grammars, self._teller
        )
        limits = dataclasses.asdict(engine.limits)
        looked = asking.statistics_told(engine.statistics())
        fields = {"facts": served.facts, "limits": limits, "statistics": looked}
        self._teller.tell(Message("ready", fields))

    async def beat(self) -> None:
        """Tells for ever how long the step under way has taken."""
        memory = IdleMemory(give_back, seconds=IDLE_SECONDS)
        while True:
            await asyncio.sleep(BEAT_S)
            age = self._of_engine.step_age_s
            self._teller.tell(Message("beat", {"step_age_s": age}))
            memory.watch(begun=self._num_begun, busy=bool(self._tickets))

    def read(self) -> None:
        """Does what has come; ends the process where the front has gone."""
        try:
            data = self._socket.recv(AT_ONCE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
        for message in self._messages.add(data):
            self._deeds[message.kind](message)

    @property
    def _of_engine(self) -> InThread:
        assert self._running is not None, "asked before it was ready"
        return self._running

    def _leave(self) -> None:
        """Ends at once: others have what was computed, or nobody has."""
        if self._running is not None:
            self._running.close(seconds=_CLOSING_S)
        os._exit(0)

    def _add(self, message: Message) -> None:
        """Lets the engine take a request; whoever is waited for is known at once."""
        told = message.fields
        self._num_begun += 1
        owners = [self._ticket(*names) for names in told["names"]]
        task = asyncio.create_task(self._add_all(told, message.columns, owners))
        for owner in owners:
            self._adding[owner.name] = task
        task.add_done_callback(functools.partial(self._added, owners))

    def _ticket(self, name: int, *others: int) -> FarTicket:
        rest: list[Ticket] = [self._ticket(other) for other in others]
        ticket = FarTicket(self._teller, name=name, others=rest)
        self._tickets[name] = ticket
        return ticket

    async def _add_all(
        self, told: dict[str, Any], columns: Any, owners: Sequence[FarTicket]
    ) -> None:
        call = told["call"]
        try:
            params = asking.params_heard(told["params"])
            submissions = asking.submissions_heard(told["prompts"], columns, params)
            future = Future[list[Request]]()
            taken = functools.partial(self._taken, call, owners, len(submissions))
            future.add_done_callback(taken)
            claim = Claim(NOTHING, asking.origin_heard(told["origin"]))
            await self._of_engine.begin_to_add(submissions, owners, claim, future)
        except Exception as error:
            self._forget(owners)
            self._teller.refuse(call, error)
            _note(error)

    def _taken(
        self,
        call: int,
        owners: Sequence[FarTicket],
        num_prompts: int,
        future: Future[list[Request]],
    ) -> None:
        """Answers on the engine's thread, before a step can tell of the request."""
        error = future.exception()
        if error is not None:
            self._forget(owners)
            self._teller.answer(call, error=asking.error_told(error))
            _note(error)
            return
        requests = future.result()
        firsts = requests[:: len(requests) // num_prompts]
        self._teller.answer(call, max_tokens=[one.max_tokens for one in firsts])

    def _added(self, owners: Sequence[FarTicket], task: asyncio.Task[None]) -> None:
        for owner in owners:
            self._adding.pop(owner.name, None)
        if not task.cancelled():
            task.result()

    def _forget(self, owners: Sequence[FarTicket]) -> None:
        for owner in owners:
            for ticket in (owner, *owner.others):
                assert isinstance(ticket, FarTicket)
                self._tickets.pop(ticket.name, None)

    def _abort(self, message: Message) -> None:
        tickets = self._named(message)
        for ticket in tickets:
            self._tickets.pop(ticket.name, None)
            if (task := self._adding.get(ticket.name)) is not None:
                task.cancel()
        self._of_engine.abort(tickets)

    def _park(self, message: Message) -> None:
        for ticket in self._named(message):
            self._of_engine.thread.park(ticket)

    def _resume(self, message: Message) -> None:
        for ticket in self._named(message):
            self._of_engine.resume(ticket)

    def _look(self, message: Message) -> None:
        running = self._of_engine
        looked = asking.statistics_told(running.statistics())
        told = {"call": message.fields["call"], "statistics": looked}
        told["num_made"] = running.num_made
        self._teller.tell(Message("answer", told))

    def _named(self, message: Message) -> list[FarTicket]:
        """Those that are still known; others have ended meanwhile."""
        names = message.fields["names"]
        return [self._tickets[name] for name in names if name in self._tickets]


def _note(error: BaseException) -> None:
    """Logs an error that is no refusal: the front only knows its words."""
    if not asking.is_refusal(error):
        _LOGGER.error("a request has failed", exc_info=error)
