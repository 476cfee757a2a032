"""What `/metrics` answers, written once for all who ask at a time."""

import asyncio
import time
from collections.abc import Callable

# Of the time between two texts, in those that the last one took: no key is wanted for
# metrics, and whoever asks without end must not take the event loop.
_REST = 4


class Scrapes:
    """Writes a text of this moment for whoever asks; a crowd shares one.

    It is begun after they have asked, so nobody is told what was true before.

    Args:
        render: writes it.
    """

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._next: asyncio.Task[bytes] | None = None
        self._rest_until_s = 0.0

    async def text(self) -> bytes:
        """The next one."""
        if self._next is None:
            self._next = asyncio.create_task(self._written())
        # Whoever leaves does not take it from the others.
        return await asyncio.shield(self._next)

    async def _written(self) -> bytes:
        await asyncio.sleep(max(self._rest_until_s - time.monotonic(), 0.0))
        self._next = None
        start = time.monotonic()
        try:
            return self._render()
        finally:
            end = time.monotonic()
            self._rest_until_s = end + _REST * (end - start)
