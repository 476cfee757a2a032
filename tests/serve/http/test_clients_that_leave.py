"""Clients that leave, and clients that have ended their side of a connection."""

import asyncio
import contextlib
import json
from typing import Any

import httpx2
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import PROMPT, TEXT, TOKENS, listening, served
from tests.support.raw_http import (
    PATH,
    connection,
    request,
    status_of,
    still_serves,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SLOW_S = 0.05
# Its answers take minutes: whoever leaves does so before its end.
LONG = TOKENS * 1000
PATIENT = PROMPT | {"max_tokens": len(LONG)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place(stream: bool):
    engine = FakeEngine(LONG, step_s=SLOW_S, max_model_len=10**6)
    body = json.dumps(PATIENT | {"stream": stream, "n": 2}).encode()
    with served(engine) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            if stream:
                assert await status_of(reader) == 200
            await asyncio.to_thread(wait_until, lambda: len(engine.sequences) == 2)
        await asyncio.to_thread(wait_until, lambda: len(engine.aborted) == 2)
        assert server.llm.num_unfinished == 0
        metrics = (await server.get("/metrics")).text
        assert 'finished_reason="abort",model_name="tales"} 2.0' in metrics
        engine.answer = TOKENS
        await still_serves(port)


async def test_a_client_that_leaves_before_the_first_event():
    engine = FakeEngine(LONG, step_s=SLOW_S, max_model_len=10**6)
    body = json.dumps(PATIENT | {"stream": True}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        while not engine.added:
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        await asyncio.sleep(SLOW_S)  # the client has gone before the head is sent

    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    with served(engine) as server:
        await server.app(scope, receive, send)
        await asyncio.to_thread(wait_until, lambda: len(engine.aborted) == 1)
        assert server.llm.num_unfinished == 0


async def test_many_clients_that_give_up():
    engine = FakeEngine(TOKENS, step_s=SLOW_S)

    async def give_up(port: int, stream: bool) -> None:
        async with httpx2.AsyncClient(timeout=0.2) as client:
            with contextlib.suppress(httpx2.TimeoutException):
                body = PROMPT | {"stream": stream}
                async with client.stream(
                    "POST", f"http://127.0.0.1:{port}{PATH}", json=body
                ) as response:
                    await response.aiter_lines().__anext__()

    with served(engine) as server, listening(server.app) as port:
        await asyncio.gather(*(give_up(port, i % 2 == 0) for i in range(50)))
        await asyncio.to_thread(wait_until, lambda: not server.llm.num_unfinished)
        assert not engine.sequences
        await still_serves(port)


@pytest.mark.parametrize("headers", ["", "Connection: close\r\n"])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_has_ended_its_side_gets_its_answer(stream: bool, headers: str):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=1)
    body = json.dumps(PROMPT | {"stream": stream}).encode()
    with served(engine) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            length = f"Content-Length: {len(body)}\r\n"
            writer.write(request(headers + length, body))
            writer.write_eof()
            async with asyncio.timeout(60):
                answer = await reader.read()
        assert b"HTTP/1.1 200" in answer
        assert not engine.aborted
        if stream:
            assert b"data: [DONE]" in answer
        else:
            content = answer.rpartition(b"\r\n\r\n")[2]
            assert json.loads(content)["choices"][0]["text"] == TEXT
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 50\r\n", b'{"prompt'))
            writer.write_eof()
            async with asyncio.timeout(60):
                assert not await reader.read(), "a part of a body is no request"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_frees_its_place(stream: bool):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=100)
    body = json.dumps(PROMPT | {"stream": stream}).encode()
    with served(engine) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            if stream:
                assert await status_of(reader) == 200
                async with asyncio.timeout(60):
                    await reader.readuntil(b"\r\n\r\n")
            await asyncio.to_thread(wait_until, lambda: len(engine.sequences) == 1)
        await asyncio.to_thread(wait_until, lambda: len(engine.aborted) == 1)
