"""Real connections: silence, bodies without end, too many headers."""

import asyncio
import contextlib
import dataclasses
import json
import socket

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

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
)
from tests.support.quiet import quiet
from tests.support.raw_http import (
    PATH,
    connection,
    dropped_for,
    request,
    status_of,
    still_serves,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SLOW_S = 0.05


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
            assert await status_of(reader) == 413
        await still_serves(port)


async def test_who_sends_all_at_once_gets_the_answer():
    """Before it has read any of it; as most clients do."""
    body = json.dumps(PROMPT | {"prompt": "a" * 10**7}).encode()
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(60):
                answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in answer


async def test_a_long_body_is_taken_in_large_pieces(monkeypatch: pytest.MonkeyPatch):
    """Small ones cost as much each, and there are many of them."""
    taken: list[int] = []
    take = H11Protocol.data_received

    def counted(self: H11Protocol, data: bytes) -> None:
        taken.append(len(data))
        take(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", counted)
    body = json.dumps(PROMPT | {"user": "a" * (LIMITS.body_bytes - 1000)}).encode()
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(f"Content-Length: {len(body)}\r\n", body))
            assert await status_of(reader) in (200, 400)
    assert sum(taken) > len(body)
    assert len(taken) < len(body) / 2**14


async def test_what_is_no_http_does_not_fill_the_log(caplog: pytest.LogCaptureFixture):
    with served() as server, listening(server.app) as port:
        for _ in range(3):
            async with connection(port) as (reader, writer):
                writer.write(b"\x16\x03\x01\r\n\r\n")
                assert await status_of(reader) == 400
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


async def test_trailers_are_bounded():
    trailer = b"0\r\n" + b"X: %s\r\n" % (b"a" * 1000) * 120 + b"\r\n"
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n", trailer))
            assert await status_of(reader) == 431


async def test_a_body_that_does_not_come():
    limits = dataclasses.replace(LIMITS, body_seconds=0.5)
    with served(limits=limits) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Content-Length: 50\r\n", b'{"prompt'))
            assert await status_of(reader) == 408
    with served() as server, listening(server.app) as port:
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
        async with httpx2.AsyncClient(timeout=60) as client:
            response = await client.post(url, json=PROMPT | {"stream": True})
        lines = response.text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
        events = [json.loads(line[6:]) for line in lines[:-2]]
        return "".join(event["choices"][0]["text"] for event in events)

    with served(FakeEngine(TOKENS)) as server, listening(server.app) as port:
        texts = await asyncio.gather(*(read(server, port) for _ in range(64)))
    assert texts == [TEXT] * 64


async def test_queue_full_is_no_lasting_state():
    engine = FakeEngine(TOKENS, max_sequences=1, crowd=100)
    with served(engine) as server:
        first = asyncio.create_task(server.post(PATH, PROMPT))
        await asyncio.to_thread(wait_until, lambda: bool(engine.sequences))
        assert (await server.post(PATH, PROMPT)).status_code == 503
        with pytest.raises(QueueFullError):
            await server.llm.start(["Once"], engine.added[0].request.params)
        engine.crowd = 0
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
        async with httpx2.AsyncClient(base_url=url.format(port), timeout=60) as client:
            held = [asyncio.create_task(client.post(PATH, json=PROMPT)) for _ in "123"]
            await asyncio.to_thread(wait_until, lambda: len(engine.sequences) == 3)
            for _ in range(30):
                assert (await client.get("/health")).status_code == 200
            refused = await client.post(PATH, json=PROMPT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "too_many_connections"
            assert refused.headers["connection"] == "close"
            engine.crowd = 0
            assert {(await one).status_code for one in held} == {200}
            assert (await client.post(PATH, json=PROMPT)).status_code == 200


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
            async with asyncio.timeout(60):
                while not await dropped_for(server, "write"):
                    await asyncio.sleep(0.05)
        await asyncio.to_thread(wait_until, lambda: not server.llm.num_unfinished)
        engine.answer = TOKENS
        await still_serves(port)


async def test_a_body_of_tiny_chunks_is_refused():
    """Each costs as much as a large one."""
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n"))
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"1\r\n \r\n" * 1000)
                    await writer.drain()
            assert await status_of(reader) == 400
        await still_serves(port)


async def test_who_was_refused_may_send_no_more_of_them():
    """Nobody reads them, and they would cost as much."""
    with served(api_keys=["secret"]) as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n"))
            assert await status_of(reader) == 401
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"1\r\n \r\n" * 1000)
                    await writer.drain()
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()
        assert await dropped_for(server, "head") == 1


async def test_some_tiny_chunks_are_taken():
    body = json.dumps(PROMPT).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request("Transfer-Encoding: chunked\r\n", chunks))
            assert await status_of(reader) == 200


async def test_two_lengths_of_one_body_are_refused():
    headers = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"
    with served() as server, listening(server.app) as port:
        async with connection(port) as (reader, writer):
            writer.write(request(headers, b"0\r\n\r\n"))
            assert await status_of(reader) == 400
