"""Runs the application until it is told to stop, and lets it finish what it began."""

import math
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from fdjax.serve.http.server import Server


class DrainingServer(uvicorn.Server):
    """Drains at the first signal, and stops at the second.

    While it drains it goes on to answer: `/health` with 503, and new requests too. It
    stops when no request is left, or at the deadline, which ends those that are left.

    Args:
        app: of `create_app`.
        host: address to listen at.
        port: 0 for a free one.
        drain_seconds: from the signal to the deadline.
    """

    def __init__(
        self, app: FastAPI, *, host: str, port: int, drain_seconds: float
    ) -> None:
        # h11 bounds headers; uvicorn's other parsers take any number of them. The
        # application logs requests itself; how logs look is for the process to say.
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http="h11",
            lifespan="off",
            access_log=False,
            log_config=None,
        )
        super().__init__(config)
        self._server: Server = app.state.server
        self._drain_seconds = drain_seconds
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._drain_seconds
            self._server.draining = True
        else:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether to stop listening."""
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0 or not self._server.llm.num_unfinished:
                # Answers on their way to clients have what is left of the time.
                self.config.timeout_graceful_shutdown = max(1, math.ceil(left))
                self.should_exit = True
        return await super().on_tick(counter)
