"""What `/metrics` answers, written once for all who ask at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Of the time between two texts, in those that the last one took: no key is wanted for
# metrics, and whoever asks without end must not take the event loop.
_REST = 4


class Scrapes:
    """Writes a text of this moment for whoever asks; a crowd shares one.

    It is begun after they have asked, so nobody is told what was true before.

    Args:
        render: writes it.
        look: has what is written be of this moment; by default it always is.
    """

    def __init__(
        self,
        render: Callable[[], bytes],
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._render = render
        self._look = look
        self._writing = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None
        self._rest_until_s = 0.0

    async def text(self) -> bytes:
        """The next one."""
        if self._next is None:
            self._next = asyncio.create_task(self._written())
        # Whoever leaves does not take it from the others.
        return await asyncio.shield(self._next)

    async def _written(self) -> bytes:
        async with self._writing:
            await asyncio.sleep(max(self._rest_until_s - time.monotonic(), 0.0))
            self._next = None
            if self._look is not None:
                await self._look()
            return self._timed()

    def _timed(self) -> bytes:
        start = time.monotonic()
        try:
            return self._render()
        finally:
            end = time.monotonic()
            self._rest_until_s = end + _REST * (end - start)
