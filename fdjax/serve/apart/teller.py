"""`Teller`: what the engine's process tells its front."""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fdjax.engine.limits import QueueLimits
from fdjax.engine.queue_check import NOBODY, Waiting
from fdjax.engine.request import Increment
from fdjax.errors import EngineDeadError
from fdjax.serve.apart import asking
from fdjax.serve.apart.increments import step
from fdjax.serve.apart.wire import Message
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.tickets import Batch, Ticket


class ApartEngine(ServingEngine, Protocol):
    """What a process of its own needs of its engine: its front decides who may wait."""

    @property
    def limits(self) -> QueueLimits:
        """Of the queue."""
        ...

    def waiting(self) -> Waiting:
        """What waits now; any thread may ask."""
        ...


@dataclass(eq=False, kw_only=True)
class FarTicket(Ticket):
    """A sample that the front waits for.

    Attributes:
        name: by which the front knows it.
        introduced: the front knows when it was let in.
    """

    name: int
    introduced: bool = False
    others: "list[Ticket]" = field(default_factory=list[Ticket])


class Teller:
    """Tells the front what the engine does: a `Receiver` and a `Watcher`.

    All of a step goes as one message, which is made on the engine's thread. What waits
    is told by that thread alone, so that the front hears of it in order: a request
    that was added never seems to be neither on its way nor waiting.

    Args:
        connection: to the front.
        engine: whose queue it is.
        drop: told the names of samples of which nothing more comes.
    """

    def __init__(
        self,
        connection: socket.socket,
        engine: ApartEngine,
        drop: Callable[[int], object],
    ) -> None:
        self._socket = connection
        self._engine = engine
        self._drop = drop
        self._lock = threading.Lock()
        self._is_open = True
        self._items: list[tuple[int, Increment]] = []
        self._introductions: list[tuple[int, float | None, int | None]] = []
        self._num_made = 0
        self._told = NOBODY

    def __call__(self, batch: Batch) -> bool:
        """Keeps increments for the end of the step; whether the front is there."""
        for ticket, item in batch:
            if isinstance(item, EngineDeadError):  # `ended` tells it of all
                continue
            assert isinstance(ticket, FarTicket)
            ticket.num_taken = ticket.num_put  # the front says who is behind
            if not ticket.introduced:
                ticket.introduced = True
                known = ticket.admitted_s, ticket.num_cached
                self._introductions.append((ticket.name, *known))
            self._items.append((ticket.name, item))
            if item.finish_reason is not None:
                self._drop(ticket.name)
        return self._is_open

    def went_round(self, num_made: int) -> None:
        """Tells what has come of a step, and how the queue is, if either is new."""
        fields = self._news()
        if not self._items and not fields and num_made == self._num_made:
            return
        self._num_made = fields["num_made"] = num_made
        if self._introductions:
            fields["introductions"], self._introductions = self._introductions, []
        items, self._items = self._items, []
        self.tell(step(items, **fields))

    def ended(self, error: EngineDeadError) -> None:
        """Tells that no more comes."""
        self.tell(Message("dead", {"text": str(error)}))

    def answer(self, call: int, **fields: Any) -> None:
        """Answers a call, on the engine's thread: with how the queue is then."""
        self.tell(Message("answer", {"call": call, **fields, **self._news()}))

    def refuse(self, call: int, error: BaseException) -> None:
        """Answers a call that has failed; any thread may."""
        told = {"call": call, "error": asking.error_told(error)}
        self.tell(Message("answer", told))

    def tell(self, message: Message) -> None:
        """Sends a message; waits while the front takes none."""
        data = message.packed()
        with self._lock, contextlib.suppress(OSError):
            if self._is_open:
                try:
                    self._socket.sendall(data)
                except OSError:
                    self._is_open = False
                    raise

    def _news(self) -> dict[str, Any]:
        waiting = self._engine.waiting()
        if waiting == self._told:
            return {}
        self._told = waiting
        return {"waiting": asking.waiting_told(waiting)}
