"""Requests of completions, byte by byte, over connections to the loopback."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import cast

import httpx2

from fdjax.serve.http.connections import Connection
from fdjax.serve.http.run import DrainingServer
from tests.support.http_server import PROMPT, TEXT, Served

PATH = "/v1/completions"


def request(headers: str, body: bytes = b"") -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}{headers}\r\n".encode() + body


@contextlib.asynccontextmanager
async def connection(
    port: int,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int | None:
    """The status of the answer; `None` where the connection was closed without one."""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            return int(line.split()[1]) if line else None
    return None


def connections(server: DrainingServer) -> list[Connection]:
    """All that are open."""
    return [cast(Connection, one) for one in server.server_state.connections]


def heads_are_late(server: DrainingServer) -> None:
    """As if all the time were over in which the heads of connections may come.

    A short time might be over before what a test sends first is there.
    """

    def now() -> None:
        for one in connections(server):
            if one._head_timer is not None:
                one._head_timer.cancel()
                one._head_is_late()

    for loop in {one.loop for one in connections(server)}:
        loop.call_soon_threadsafe(now)


async def dropped_for(server: Served, reason: str) -> float:
    """Connections that the server closed, or refused a request."""
    found = re.search(
        rf'connections_dropped_total{{.*reason="{reason}"}} (\S+)',
        (await server.get("/metrics")).text,
    )
    assert found is not None
    return float(found[1])


async def still_serves(port: int) -> None:
    async with httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(f"http://127.0.0.1:{port}{PATH}", json=PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT
