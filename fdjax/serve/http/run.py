"""Runs the application until it is told to stop, and lets it finish what it began."""

import asyncio
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import override

import uvicorn
from fastapi import FastAPI

from fdjax.serve.http.connections import Connection, CrowdConfig
from fdjax.serve.http.crowd import ConnectionLimits, Crowd
from fdjax.serve.http.errors import ApiError, draining
from fdjax.serve.http.errors import stalled as stalled_error
from fdjax.serve.http.heads import HEAD_BYTES
from fdjax.serve.http.listening import ACCEPTED_AT_ONCE, url
from fdjax.serve.http.server import Server
from fdjax.serve.http.turnstile import Turnstile
from fdjax.serve.idle_memory import IDLE_SECONDS, IdleMemory, give_back

# For clients that were told of an error to read it, and for connections to close.
_LAST_WORDS_S = 1.0
# As many as may wait to be accepted; the kernel has a limit of its own.
_BACKLOG = 2048

_LOGGER = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """Drains at the first signal, and stops at the second.

    While it drains it goes on to answer: `/health` with 503, and new requests too. It
    stops when no request is left, or at the deadline, which ends those that are left:
    their clients are told.

    Args:
        app: of `create_app`.
        sockets: bound.
        drain_seconds: from the signal to the deadline.
        limits: of connections.
        stall_exit_seconds: that the engine may be stalled until the server stops;
            `None`: for ever.
        on_stop: told at a signal in how many seconds the server has stopped.

    Attributes:
        num_lost: requests that were ended.
        gave_up: it stops because its engine is stalled.
    """

    def __init__(
        self,
        app: FastAPI,
        sockets: Sequence[socket.socket],
        *,
        drain_seconds: float,
        limits: ConnectionLimits,
        stall_exit_seconds: float | None = None,
        on_stop: Callable[[float], None] = lambda _: None,
    ) -> None:
        server: Server = app.state.server
        # h11 bounds headers; uvicorn's other parsers take any number of them. The
        # application logs requests itself; how logs look is for the process to say.
        config = CrowdConfig(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=limits.idle_seconds,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        config.crowd = Crowd(limits, server.metrics.dropped)
        config.turnstile = Turnstile()
        server.metrics.connections.set_function(lambda: len(config.crowd))
        super().__init__(config)
        self._server = server
        self._listeners = list(sockets)
        self._drain_seconds = drain_seconds
        self._stall_exit_seconds = stall_exit_seconds
        self._on_stop = on_stop
        self._deadline: float | None = None
        self._told_until: float | None = None
        self._was_stalled = False
        self._memory = IdleMemory(give_back, seconds=IDLE_SECONDS)
        self._readings = set[asyncio.Task[None]]()
        self.gave_up = False

    @property
    def num_lost(self) -> int:
        """See above."""
        return self._server.underway.num_lost

    @override
    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or self._listeners)

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens; from now on SIGHUP reads the file of keys again."""
        keyring = self._server.keyring
        if keyring.file is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._read_keys)
            await keyring.read_beside()  # it may have changed meanwhile
        await self._server.llm.look()  # and hears from now on whether the engine lives
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)  # asyncio takes one number for both
            _LOGGER.info("listening at %s", url(listener))

    def _read_keys(self) -> None:
        reading = asyncio.create_task(self._server.keyring.read_beside())
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes a signal."""
        seconds = self._drain_seconds if self._deadline is None else 0.0
        self._deadline = time.monotonic() + seconds
        self._server.draining = True
        self._on_stop(seconds + 2 * _LAST_WORDS_S)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether to stop listening."""
        self._watch_steps()
        underway = self._server.underway
        self._memory.watch(begun=underway.num_begun, busy=bool(underway))
        if self._deadline is not None:
            self._drain(self._deadline - time.monotonic())
        return await super().on_tick(counter)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes what is open; nobody is waited for who was told, and does not read."""
        if underway := self._server.underway:
            underway.give_up()
            self._abort_connections()
        if lost := self.num_lost:
            _LOGGER.warning("%d requests were ended before they were done", lost)
        await super().shutdown(sockets)
        self._abort_connections()  # refused ones, which still send
        await asyncio.sleep(0)

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _drain(self, left_s: float) -> None:
        underway = self._server.underway
        if left_s <= 0 and self._told_until is None:
            self._end(draining())
        told = self._told_until is not None and time.monotonic() > self._told_until
        if told or not underway:
            # Answers on their way to clients have what is left of the time.
            left_s = max(left_s, _LAST_WORDS_S)
            self.config.timeout_graceful_shutdown = math.ceil(left_s)
            self.should_exit = True

    def _end(self, error: ApiError) -> None:
        self._server.underway.end(error)
        self._told_until = time.monotonic() + _LAST_WORDS_S

    def _watch_steps(self) -> None:
        """Says when the engine stalls and when it goes on, and may end the server."""
        age_s, stalled = self._server.llm.step_age_s, self._server.is_stalled
        if stalled and not self._was_stalled:
            _LOGGER.error("the engine has not ended its step for %.0f s", age_s)
        elif self._was_stalled and not stalled:
            _LOGGER.warning("the engine goes on")
        self._was_stalled = stalled
        most_s = self._stall_exit_seconds
        if most_s is None or self._deadline is not None:
            return
        if age_s > self._server.stall_seconds + most_s:
            _LOGGER.critical("the engine does not go on: the server stops")
            self._deadline = time.monotonic()
            self._server.draining = self.gave_up = True
            self._on_stop(2 * _LAST_WORDS_S)
            self._end(stalled_error(age_s))
