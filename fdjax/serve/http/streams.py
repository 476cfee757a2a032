"""Several streams as one, and work that ends when its client goes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from fastapi import Request

from fdjax.serve.async_llm import Stream
from fdjax.serve.outputs import Chunk


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Chunk]]:
    """Chunks of all streams as they come, with the place of their stream.

    Whatever ends it closes all streams.
    """
    queue: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue(len(streams))

    async def pump(index: int, stream: Stream) -> None:
        try:
            async for chunk in stream:
                await queue.put((index, chunk))
        except Exception as error:  # whoever reads the queue raises it
            await queue.put(error)

    tasks = [
        asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)
    ]
    remaining = len(streams)
    try:
        while remaining:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            remaining -= item[1].finish_reason is not None
            yield item
    finally:
        for task, stream in zip(tasks, streams, strict=True):
            task.cancel()
            stream.close()


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
