"""`Inbox`: what has come of one sample; tokens that nobody has read yet become one."""

import asyncio
from collections import deque
from typing import TypeGuard

from fdjax.engine.request import Increment
from fdjax.errors import EngineDeadError

type Item = Increment | EngineDeadError

MOST_JOINED = 16
"""Tokens of increments that are joined: with log-probabilities each may be a thousand
bytes of JSON, and what is made at once keeps all others waiting."""


class Inbox:
    """Increments for the one task that reads them, or the error that ends them.

    Increments that wait are joined: a reader that is slower than the engine gets more
    tokens at once, at the price of one increment. So what each reading costs (text,
    JSON and sending, on the thread that all streams share) falls just where there is
    too much of it. Nothing is put or read but on the loop of the reader.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        """Adds what has come."""
        last = self._items[-1] if self._items else None
        # Plain increments alone: those of a beam search replace one another. Behind an
        # end may stand what was on its way when the reader's side ended it.
        if _is_plain(last) and _is_plain(item) and _may_be_joined(last, item):
            self._items[-1] = _joined(last, item)
        else:
            self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Item:
        """The next; waits for it."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()


def _is_plain(item: Item | None) -> TypeGuard[Increment]:
    return type(item) is Increment


def _may_be_joined(one: Increment, other: Increment) -> bool:
    count = len(one.token_ids) + len(other.token_ids)
    return one.finish_reason is None and count <= MOST_JOINED


def _joined(one: Increment, other: Increment) -> Increment:
    """Two of one sample, the first of which is not its last."""
    logprobs = None
    if one.logprobs is not None and other.logprobs is not None:
        logprobs = one.logprobs + other.logprobs
    return Increment(
        one.index,
        one.token_ids + other.token_ids,
        logprobs,
        other.finish_reason,
        one.prompt_logprobs,
    )
