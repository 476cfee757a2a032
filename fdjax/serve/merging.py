"""Several streams of chunks as one."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from fdjax.serve.outputs import Chunk


class ChunkStream(Protocol):
    """Chunks of one sample, as they come."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Itself."""
        ...

    def close(self) -> None:
        """Aborts the sample, if it has not ended."""
        ...


async def merged(streams: Sequence[ChunkStream]) -> AsyncGenerator[tuple[int, Chunk]]:
    """Chunks of all streams as they come, with the place of their stream.

    Whatever ends it closes all streams.
    """
    if len(streams) == 1:  # as most requests have: no task, and no second queue
        (alone,) = streams
        try:
            async for chunk in alone:
                yield 0, chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            alone.close()
        return
    queue: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue(len(streams))

    async def pump(index: int, stream: ChunkStream) -> None:
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
