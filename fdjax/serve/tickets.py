"""What stands between an engine's thread and the asyncio tasks that wait for it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from fdjax.engine.beam_programs import Prepared
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Found, Increment, Tried
from fdjax.generate.any_params import AnyParams
from fdjax.serve.inbox import Inbox, Item

MOST_UNREAD = 256
"""Tokens of a sample that may wait to be read: then the engine goes on with others.

The kernel's buffers hold some thousands more on their way to a client of HTTP.
"""


@dataclass(frozen=True)
class Submission:
    """A prompt on its way to the engine.

    Attributes:
        index: place of the prompt in the caller's list.
        prompt: token ids.
        params: how to continue it.
        grammar: what the output may be.
        programs: of a beam search, where they are compiled.
    """

    index: int
    prompt: Sequence[int]
    params: AnyParams
    grammar: Grammar | None = None
    programs: Prepared | None = None

    @cached_property
    def samples(self) -> Sequence[AnyParams]:
        """How to continue it, each time; they differ in their seeds."""
        return self.params.samples()


class Receiver(Protocol):
    """Takes what the engine's thread has for the tickets that name it."""

    def __call__(self, batch: "Batch") -> bool:
        """Takes some increments, or errors; whether anybody still wants them."""
        ...


class OnLoop:
    """Puts what has come where tasks of a loop read it: into the inboxes.

    Args:
        loop: theirs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __call__(self, batch: "Batch") -> bool:
        """Whether the loop still runs."""
        try:
            self.loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:  # it is closed
            return False
        return True


@dataclass(eq=False)
class Ticket:
    """A sample that somebody waits for.

    Attributes:
        to: takes its increments; those for one receiver come together.
        inbox: increments as they come, or the error that ends them.
        sequence: the engine's handle, known to the engine's thread alone.
        admitted_s: when the engine let it in, by `time.monotonic`; known with the first
            increment.
        num_cached: tokens of its prompt that were found in the cache then.
        num_put: tokens that the engine's thread has sent to the inbox.
        num_taken: tokens that were read from it.
        parked: the engine makes no more of it until all were read.
        others: of a beam search, those who wait for its next best outputs.
        num_tried: of a beam search, tokens that its beams have got, as far as that has
            come; see `Tried`.
        on_tried: told of more of them when they come.
    """

    to: Receiver
    inbox: Inbox = field(default_factory=Inbox)
    sequence: Any = None
    admitted_s: float | None = None
    num_cached: int | None = None
    num_put: int = 0
    num_taken: int = 0
    parked: bool = False
    others: "list[Ticket]" = field(default_factory=list["Ticket"])
    num_tried: int = 0
    on_tried: Callable[[int], object] | None = None

    @property
    def num_unread(self) -> int:
        """Tokens on their way to whoever reads the inbox."""
        return self.num_put - self.num_taken

    @property
    def is_behind(self) -> bool:
        """More is unread than may be: no more should be made of it."""
        return self.num_unread > MOST_UNREAD and not self.parked

    def shared(self, increment: Increment) -> "list[tuple[Ticket, Increment]]":
        """What has come, to whom: the outputs of a beam search go to one each."""
        if not isinstance(increment, Found) or increment.finish_reason is None:
            return [(self, increment)]
        tickets = [self, *self.others]
        return list(zip(tickets, increment.shared(len(tickets)), strict=True))

    def put(self, item: Item) -> None:
        """Takes what has come, on the loop of whoever reads the inbox."""
        if not isinstance(item, Tried):
            self.inbox.put(item)
            return
        self.num_tried += item.num_tokens
        if self.on_tried is not None:
            self.on_tried(item.num_tokens)

    def take(self, increment: Increment) -> bool:
        """Counts what was read; whether a parked sequence should go on."""
        self.num_taken += len(increment.token_ids)
        return self.parked and not self.num_unread


type Batch = Sequence[tuple[Ticket, Item]]


def _put(batch: Batch) -> None:
    for ticket, item in batch:
        ticket.put(item)
