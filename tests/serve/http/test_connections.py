"""Real connections: clients that leave, bodies without end, too many headers."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from fdjax.errors import QueueFullError
from fdjax.serve.http.crowd import RESERVE, ConnectionLimits
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
from tests.support.quiet import quiet

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
    ("headers", "status"),
    [
        ("".join(f"X-{i}: {'a' * 100}\r\n" for i in range(10_000)), 431),
        (f"X: {'a' * 1_000_000}\r\n", 431),
        (f"X: {'a' * 100_000}\r\n", 431),
        ("Content-Length: -5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        ("Transfer-Encoding: magic\r\n", 501),
    ],
    ids=["many", "long", "in-one-piece", "negative", "two", "magic"],
)
async def test_headers_that_are_wrong(headers: str, status: int):
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(headers))
            answer = await reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert json.loads(body)["error"]["message"]
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


async def test_silent_connections_keep_nobody_out():
    """Many more than there may be; some have sent half a head, some answers lag."""
    limits = ConnectionLimits(total=4, head_seconds=60)
    with served() as server, listening(server.app, limits) as port, quiet(port) as seen:
        seen.go_on()
        async with contextlib.AsyncExitStack() as stack:
            for i in range(100):
                _, writer = await stack.enter_async_context(connection(port))
                if i % 2:
                    writer.write(b"GET /health HTTP/1.1\r\nHost")
            seen.go_on()
            await still_serves(port)
        dropped = await dropped_for(server, "crowded")
    assert dropped >= 100 - limits.total - RESERVE - 2


async def test_health_is_answered_when_all_places_are_taken():
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=100)
    limits = ConnectionLimits(total=3)
    url = "http://127.0.0.1:{}"
    with served(engine) as server, listening(server.app, limits) as port:
        async with httpx2.AsyncClient(base_url=url.format(port), timeout=30) as client:
            held = [asyncio.create_task(client.post(PATH, json=PROMPT)) for _ in "123"]
            await asyncio.to_thread(wait_until, lambda: len(engine.jobs) == 3)
            for _ in range(30):
                assert (await client.get("/health")).status_code == 200
            refused = await client.post(PATH, json=PROMPT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "too_many_connections"
            assert refused.headers["connection"] == "close"
            engine.crowd = 0
            assert {(await one).status_code for one in held} == {200}
            assert (await client.post(PATH, json=PROMPT)).status_code == 200


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (b"GET /health HT", [b"408"]),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET", [b"200", b"408"]),
    ],
    ids=["silent", "half", "second"],
)
async def test_a_head_that_does_not_come(sent: bytes, statuses: list[bytes]):
    limits = ConnectionLimits(head_seconds=0.2, idle_seconds=60)
    with served() as server, listening(server.app, limits) as port:
        async with connection(port) as (reader, writer):
            writer.write(sent)
            async with asyncio.timeout(30):
                answer = await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == statuses
        await still_serves(port)


async def test_what_comes_after_an_answer_does_not_keep_a_connection():
    """A body whose request was refused at once, byte by byte."""
    limits = ConnectionLimits(head_seconds=0.3, idle_seconds=1)
    with (
        served(api_keys=["secret"]) as server,
        listening(server.app, limits) as port,
    ):
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 1000000\r\n"))
            assert await status_of(reader) == 401
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    while not reader.at_eof():
                        writer.write(b"a")
                        await asyncio.sleep(0.02)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.01):
                                await reader.read(65536)
        assert await dropped_for(server, "head") == 1


async def test_a_stream_that_nobody_reads_ends():
    answer = TOKENS * 1500
    engine = FakeEngine(answer, per_step=50, max_model_len=10**6)
    limits = ConnectionLimits(write_seconds=0.3)
    body = PROMPT | {"stream": True, "n": 4, "logprobs": 20, "max_tokens": len(answer)}
    sent = json.dumps(body).encode()
    with served(engine) as server, listening(server.app, limits) as port:
        async with connection(port) as (_, writer):
            small = writer.get_extra_info("socket")
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]  (one that reads, too)
            writer.write(request(f"Content-Length: {len(sent)}\r\n", sent))
            async with asyncio.timeout(30):
                while not await dropped_for(server, "write"):
                    await asyncio.sleep(0.05)
        await asyncio.to_thread(wait_until, lambda: not server.llm.num_unfinished)
        engine.answer = TOKENS
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
            async with asyncio.timeout(30):
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
            async with asyncio.timeout(30):
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
                async with asyncio.timeout(30):
                    await reader.readuntil(b"\r\n\r\n")
            await asyncio.to_thread(wait_until, lambda: len(engine.jobs) == 1)
        await asyncio.to_thread(wait_until, lambda: len(engine.aborted) == 1)
