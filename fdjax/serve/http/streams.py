"""Work that ends when its client goes."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from fastapi import Request


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone[T](request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled when the client disconnects.

    Raises:
        ClientGoneError: it did.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, gone):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
