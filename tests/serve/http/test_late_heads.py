"""Heads that do not come in time, and what comes where nobody reads it any more."""

import asyncio
import contextlib
import re
import time
from collections.abc import Generator

import h11
import pytest

from fdjax.serve.http.crowd import ConnectionLimits
from fdjax.serve.http.run import DrainingServer
from tests.support.http_server import Served, listening, running, served
from tests.support.raw_http import (
    connection,
    connections,
    dropped_for,
    heads_are_late,
    request,
    status_of,
    still_serves,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

# Nobody waits so long: whoever is late is told so by `heads_are_late`.
LATER = ConnectionLimits(head_seconds=3600, idle_seconds=3600)


@contextlib.contextmanager
def listening_late(server: Served) -> Generator[tuple[DrainingServer, int]]:
    """An application on a port, where nobody is late."""
    with running(server.app, LATER, drain_seconds=0) as (listener, _, port):
        yield listener, port


async def late(server: DrainingServer, begun: bytes | None = None) -> None:
    """The time of the only connection is over, once its server awaits a head.

    Args:
        server: of the connection.
        begun: what has come of the head by then; `None`: what comes is no head, as
            there was an answer before the end of a request.
    """

    def awaits() -> bool:
        return any(
            one._head_timer is not None
            and (
                one.conn.our_state is not h11.IDLE
                if begun is None
                else one.conn.our_state is h11.IDLE
                and one.conn.trailing_data[0] == begun
            )
            for one in connections(server)
        )

    await asyncio.to_thread(wait_until, awaits)
    heads_are_late(server)


@pytest.mark.parametrize(
    ("before", "begun", "statuses"),
    [
        (b"", b"", []),
        (b"", b"GET /health HT", [b"408"]),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"GET", [b"200", b"408"]),
    ],
    ids=["silent", "half", "second"],
)
async def test_a_head_that_does_not_come(
    before: bytes, begun: bytes, statuses: list[bytes]
):
    with (
        served() as server,
        listening_late(server) as (listener, port),
    ):
        async with connection(port) as (reader, writer):
            writer.write(before + begun)
            await late(listener, begun)
            async with asyncio.timeout(60):
                answer = await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == statuses
        assert await dropped_for(server, "head") == 1
        await still_serves(port)


async def test_heads_have_so_many_seconds():
    limits = ConnectionLimits(head_seconds=0.2, idle_seconds=60)
    with served() as server, listening(server.app, limits) as port:
        start = time.monotonic()
        async with connection(port) as (reader, _), asyncio.timeout(60):
            assert not await reader.read()
        assert time.monotonic() - start >= 0.2
        assert await dropped_for(server, "head") == 1


async def test_who_stays_after_that_is_counted_once():
    with (
        served() as server,
        listening_late(server) as (listener, port),
    ):
        async with connection(port) as (reader, writer):
            writer.write(b"GET /health HT")
            await late(listener, b"GET /health HT")
            async with asyncio.timeout(60):
                assert await status_of(reader) == 408
                await late(listener)
                with contextlib.suppress(ConnectionError):
                    while True:
                        writer.write(b"a")
                        await writer.drain()
                        await asyncio.sleep(0.02)
        assert await dropped_for(server, "head") == 1


async def test_what_comes_after_an_answer_does_not_keep_a_connection():
    """A body whose request was refused at once, byte by byte."""
    with (
        served(api_keys=["secret"]) as server,
        listening_late(server) as (listener, port),
    ):
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 1000000\r\n"))
            assert await status_of(reader) == 401
            writer.write(b"a")
            await late(listener)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    while not reader.at_eof():
                        writer.write(b"a")
                        await asyncio.sleep(0.02)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.01):
                                await reader.read(65536)
        assert await dropped_for(server, "head") == 1


async def test_a_chunked_body_without_end():
    chunk = b"%x\r\n%s\r\n" % (65536, b"a" * 65536)

    async def pour(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(chunk)
                await writer.drain()

    with (
        served() as server,
        listening_late(server) as (listener, port),
    ):
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n"))
            pouring = asyncio.create_task(pour(writer))
            assert await status_of(reader) == 413
            await late(listener)
            async with asyncio.timeout(60):
                await pouring  # the connection is closed on it
        await still_serves(port)
