"""Requests of completions, byte by byte, over connections to the loopback."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

import httpx2

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


async def status_of(reader: asyncio.StreamReader, seconds: float = 2.0) -> int | None:
    """The status of the answer; `None` where the connection was closed without one."""
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            return int(line.split()[1]) if line else None
    return None


async def dropped_for(server: Served, reason: str) -> float:
    """Connections that the server closed, or refused a request."""
    found = re.search(
        rf'connections_dropped_total{{.*reason="{reason}"}} (\S+)',
        (await server.get("/metrics")).text,
    )
    assert found is not None
    return float(found[1])


async def still_serves(port: int) -> None:
    async with httpx2.AsyncClient() as client:
        response = await client.post(f"http://127.0.0.1:{port}{PATH}", json=PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT
