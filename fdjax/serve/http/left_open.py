"""`LeftOpen`: a transport whose protocol may go on with it when uvicorn closes it."""

import asyncio
from collections.abc import Callable
from typing import Any


class LeftOpen:
    """A transport, but for `close`.

    Args:
        transport: of a connection.
        close: called instead of its own.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def really_close(self) -> None:
        """Closes it, when what was written has gone."""
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """All else that a transport has."""
        return getattr(self._transport, name)
