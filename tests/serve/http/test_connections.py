"""Real connections: clients that leave, bodies without end, too many headers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from fdjax.errors import QueueFullError
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    LIMITS,
    PROMPT,
    TEXT,
    TOKENS,
    Served,
    listening,
    served,
    wait_until,
)

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
SLOW_S = 0.05


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


async def still_serves(port: int) -> None:
    async with httpx2.AsyncClient() as client:
        response = await client.post(f"http://127.0.0.1:{port}{PATH}", json=PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place(stream: bool):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    body = json.dumps(PROMPT | {"stream": stream, "n": 2}).encode()
    with served(engine) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            if stream:
                assert await status_of(reader) == 200
            wait_until(lambda: len(engine.jobs) == 2)
        await asyncio.to_thread(wait_until, lambda: len(engine.aborted) == 2)
        assert server.llm.num_unfinished == 0
        metrics = (await server.get("/metrics")).text
        assert 'finished_reason="abort",model_name="tales"} 2.0' in metrics
        await still_serves(port)


async def test_a_client_that_leaves_before_the_first_event():
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    body = json.dumps(PROMPT | {"stream": True}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

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
        await asyncio.to_thread(wait_until, lambda: not engine.jobs)
        assert server.llm.num_unfinished == 0
        await still_serves(port)


async def test_a_body_that_says_it_is_too_long():
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 10000000\r\n"))
            assert await status_of(reader) == 413
        await still_serves(port)


async def test_ten_megabytes_that_are_all_sent():
    body = json.dumps(PROMPT | {"prompt": "a" * 10**7}).encode()
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            assert await status_of(reader, 1.0) in (413, None)
        await still_serves(port)


async def test_a_chunked_body_without_end():
    chunk = b"%x\r\n%s\r\n" % (65536, b"a" * 65536)

    async def pour(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(chunk)
                await writer.drain()

    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n"))
            pouring = asyncio.create_task(pour(writer))
            assert await status_of(reader) in (413, None)
            async with asyncio.timeout(2):
                await pouring  # the connection is closed on it
        await still_serves(port)


async def test_a_body_that_does_not_come():
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 50\r\n", b'{"prompt'))
            assert await status_of(reader, LIMITS.body_seconds + 1) == 408
        await still_serves(port)


@pytest.mark.parametrize(
    "headers",
    [
        "".join(f"X-{i}: {'a' * 100}\r\n" for i in range(10_000)),
        f"X: {'a' * 1_000_000}\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: magic\r\n",
    ],
    ids=["many", "long", "negative", "two", "magic"],
)
async def test_headers_that_are_wrong(headers: str):
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(request(headers))
                await writer.drain()
            assert await status_of(reader) in (400, 501, None)
        await still_serves(port)


async def test_all_streams_of_a_crowd_are_whole():
    async def read(server: Served, port: int) -> str:
        url = f"http://127.0.0.1:{port}{PATH}"
        async with httpx2.AsyncClient(timeout=30) as client:
            response = await client.post(url, json=PROMPT | {"stream": True})
        lines = response.text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
        events = [json.loads(line[6:]) for line in lines[:-2]]
        return "".join(event["choices"][0]["text"] for event in events)

    with served(FakeEngine(TOKENS)) as server, listening(server.app) as port:
        texts = await asyncio.gather(*(read(server, port) for _ in range(64)))
    assert texts == [TEXT] * 64


async def test_queue_full_is_no_lasting_state():
    engine = FakeEngine(TOKENS, step_s=SLOW_S, max_jobs=1)
    with served(engine) as server:
        first = asyncio.create_task(server.post(PATH, PROMPT))
        await asyncio.to_thread(wait_until, lambda: bool(engine.jobs))
        assert (await server.post(PATH, PROMPT)).status_code == 503
        with pytest.raises(QueueFullError):
            await server.llm.start(["Once"], engine.added[0].request.params)
        assert (await first).status_code == 200
        assert (await server.post(PATH, PROMPT)).status_code == 200
