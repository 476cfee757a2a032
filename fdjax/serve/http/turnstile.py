"""`Turnstile`: few requests begin at a time, so that all else goes on between them."""

import asyncio
import time
from collections import deque

PER_TURN = 4
"""Requests that begin in a turn of the event loop.

Each takes a millisecond or two. With 256 streams a turn may take 25 ms, and requests
that come together should not wait as many turns.
"""
# Of the time that requests took which were answered at once; see `Turnstile`.
_REST = 1


class Turnstile:
    """Few requests begin in a turn of the event loop; addresses take turns.

    Most of a request's work is done before it waits for anything. If as many began in
    a turn as have come, a stream would stand still for all of them between two tokens.

    What is answered without waiting for anything (a page, `/health`, a refusal) is work
    of the event loop alone, and a client may ask for it without end. After it the next
    requests begin no sooner than that took, so that such answers take half of the event
    loop at most, and the engine's thread, which needs the same interpreter, goes on.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._left = PER_TURN
        self._turn = 0
        self._began_s = self._rest_s = 0.0

    async def enter(self, address: str) -> int:
        """Waits for a place in a turn.

        Returns:
            Which turn it is, for `leave`.
        """
        loop = asyncio.get_running_loop()
        if not self._left:
            entered = loop.create_future()
            self._waiting.setdefault(address, deque()).append(entered)
            await entered
        else:
            if self._left == PER_TURN:
                loop.call_soon(self._open)
            self._left -= 1
        self._began_s = time.thread_time()
        return self._turn

    def leave(self, turn: int) -> None:
        """The request of that turn has been answered."""
        if turn == self._turn:  # at once
            self._rest_s += _REST * (time.thread_time() - self._began_s)

    def _open(self) -> None:
        """Called in the turn of the event loop after one in which requests began."""
        loop = asyncio.get_running_loop()
        self._turn += 1
        if rest_s := self._rest_s:
            self._left, self._rest_s = 0, 0.0
            loop.call_later(rest_s, self._open)
            return
        self._left = PER_TURN
        while self._left and (entered := self._next()):
            self._left -= 1
            entered.set_result(None)
        if self._left < PER_TURN:
            loop.call_soon(self._open)  # once these have run

    def _next(self) -> asyncio.Future[None] | None:
        while self._waiting:
            address, ours = next(iter(self._waiting.items()))
            entered = ours.popleft()
            del self._waiting[address]
            if ours:
                self._waiting[address] = ours  # behind all others
            if not entered.done():
                return entered
        return None
