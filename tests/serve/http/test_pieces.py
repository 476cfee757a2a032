"""A stream is the same whichever way its pieces take to the client."""

import asyncio
import json
import re

import pytest

from tests.support.http_server import PROMPT, TEXT, listening, served
from tests.support.raw_http import PATH, connection

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("apart")]

BODY = json.dumps(PROMPT | {"stream": True}).encode()


async def answer(port: int, version: str) -> tuple[bytes, bytes]:
    """Head and body of a stream, as they come."""
    headers = "Host: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    head = f"POST {PATH} HTTP/{version}\r\n{headers}Content-Length: {len(BODY)}\r\n\r\n"
    async with connection(port) as (reader, writer), asyncio.timeout(20):
        writer.write(head.encode() + BODY)
        first, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    return first.lower(), rest


def unchunked(body: bytes) -> list[bytes]:
    """The pieces of a body in chunks, whose lengths must be right."""
    pieces: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
    assert pieces.pop() == b"", "the last chunk is empty"
    return pieces


def texts(events: list[bytes]) -> list[str]:
    *made, done = events
    assert done == b"data: [DONE]\n\n"
    choices = [json.loads(event.removeprefix(b"data: "))["choices"] for event in made]
    return [choice["text"] for (choice,) in choices]


async def test_each_event_is_a_chunk():
    with served() as server, listening(server.app) as port:
        head, body = await answer(port, "1.1")
        pieces = unchunked(body)
        usual = (await server.post(PATH, PROMPT | {"stream": True})).content
    assert b"transfer-encoding: chunked" in head
    assert "".join(texts(pieces)) == TEXT and len(pieces) > 2
    assert _nameless(b"".join(pieces)) == _nameless(usual)


async def test_an_old_client_gets_no_chunks():
    with served() as server, listening(server.app) as port:
        head, body = await answer(port, "1.0")
    assert b"transfer-encoding" not in head
    events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
    assert "".join(texts(events)) == TEXT


def _nameless(body: bytes) -> bytes:
    """Without what differs between two answers."""
    return re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", body)
