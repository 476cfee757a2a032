"""`Attackers`: where attacks go, and what has become of them."""

import asyncio
import collections
import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx2

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
_WAIT_S = 60.0


@dataclass
class Attackers:
    """Where attacks go, and what has become of them.

    Attributes:
        url: of the server.
        key: of the API, or `None`.
        draw: what is random about them.
        largest: bytes of the largest body.
        hold_s: how long an attack keeps what it has, at most.
        outcomes: how often each attack ended with what: a status, or "closed".
    """

    url: str
    key: str | None
    draw: random.Random
    largest: int = 4 * 2**20
    hold_s: float = 3.0
    outcomes: collections.Counter[tuple[str, str]] = field(
        default_factory=collections.Counter[tuple[str, str]]
    )

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    async def post(self, path: str, body: Any) -> str:
        """The status of the answer."""
        async with httpx2.AsyncClient(base_url=self.url, timeout=_WAIT_S) as client:
            answer = await client.post(path, json=body, headers=self.headers)
        return str(answer.status_code)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = httpx2.URL(self.url)
        return await asyncio.open_connection(url.host, url.port)

    async def leave(self, path: str, body: Any) -> str:
        """Asks for something, and closes the connection before long."""
        data = json.dumps(body).encode()
        _, writer = await self.connect()
        with contextlib.closing(writer):
            writer.write(self.head(path, len(data)) + data)
            await asyncio.sleep(self.draw.uniform(0.0, self.hold_s))
        return "closed"

    def head(self, path: str, length: int | None) -> bytes:
        """Of a request with a body of so many bytes; `None`: in chunks."""
        size = f"Content-Length: {length}"
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked" if length is None else size,
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    async def pipeline(self, path: str, count: int, *, key: bool) -> str:
        """Asks for a page so often on one connection, all at once; the last status."""
        url = httpx2.URL(self.url)
        fields = [f"{name}: {value}" for name, value in self.headers.items() if key]
        lines = [f"GET {path} HTTP/1.1", f"Host: {url.host}", *fields]
        ask = "\r\n".join([*lines, "", ""]).encode() * count
        end = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
        reader, writer = await self.connect()
        with contextlib.closing(writer):
            writer.write(ask + end)
            said = await asyncio.wait_for(reader.read(), _WAIT_S)
        answers = said.count(b"HTTP/1.1 ")
        status = said.rpartition(b"HTTP/1.1 ")[2][:3].decode()
        return status if answers == count + 1 else f"{answers} answers"

    async def send(self, *parts: bytes, half_close: bool = False) -> str:
        """Bytes on a connection of their own, and the status of the first answer."""
        reader, writer = await self.connect()
        with contextlib.closing(writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
            if half_close:
                writer.write_eof()
            line = await asyncio.wait_for(reader.readline(), _WAIT_S)
        return line.split()[1].decode() if line else "closed"
