"""Signals: what runs is finished, nothing new is taken, and there is a deadline."""

import asyncio
import signal
import threading
import time

import httpx2
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import PROMPT, TEXT, TOKENS, running, served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SLOW_S = 0.1


async def post(port: int, *, stream: bool = False) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as client:
        return await client.post(
            f"http://127.0.0.1:{port}/v1/completions", json=PROMPT | {"stream": stream}
        )


async def test_under_load_nothing_is_lost():
    engine = FakeEngine(TOKENS, crowd=100)
    with (
        served(engine) as server,
        running(server.app, drain_seconds=600) as (draining, thread, port),
    ):
        requests = [
            asyncio.create_task(post(port, stream=i % 2 == 0)) for i in range(20)
        ]
        await asyncio.to_thread(wait_until, lambda: len(engine.sequences) == 20)
        draining.handle_exit(signal.SIGTERM, None)
        async with httpx2.AsyncClient(timeout=60) as client:
            assert (
                await client.get(f"http://127.0.0.1:{port}/health")
            ).status_code == 503
        assert (await post(port)).status_code == 503
        engine.crowd = 0
        for i, response in enumerate(await asyncio.gather(*requests)):
            assert response.status_code == 200
            if i % 2 == 0:
                assert response.text.endswith("data: [DONE]\n\n")
            else:
                assert response.json()["choices"][0]["text"] == TEXT
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive(), "it stops by itself"
        assert draining.num_lost == 0
    assert not engine.aborted


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_does_not_end_is_ended(signals: int):
    """By the deadline after one signal, at once after another."""
    engine = FakeEngine(TOKENS * 1000, step_s=SLOW_S, max_model_len=10**6)
    with (
        served(engine) as server,
        running(server.app, drain_seconds=(1, 600)[signals - 1]) as (
            draining,
            thread,
            port,
        ),
    ):
        body = {"prompt": "Once", "max_tokens": 10**5}
        async with httpx2.AsyncClient(timeout=60) as client:
            request = asyncio.create_task(
                client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
            )
            await asyncio.to_thread(wait_until, lambda: bool(engine.sequences))
            start = time.monotonic()
            for _ in range(signals):
                draining.handle_exit(signal.SIGTERM, None)
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()
            assert time.monotonic() - start >= (1, 0)[signals - 1]
            answer = await request
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "draining"
            assert draining.num_lost == 1
        await asyncio.to_thread(wait_until, lambda: not engine.sequences)
    assert len(engine.aborted) == 1


async def test_a_client_that_does_not_read_its_error_is_not_waited_for():
    engine = FakeEngine(TOKENS * 5000, per_step=50, max_model_len=10**6)
    body = {"prompt": "Once", "max_tokens": 10**5, "stream": True, "logprobs": 20}
    with (
        served(engine) as server,
        running(server.app, drain_seconds=0.2) as (draining, thread, port),
    ):
        async with httpx2.AsyncClient(timeout=60) as client:
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with client.stream("POST", url, json=body) as response:
                assert response.status_code == 200
                draining.handle_exit(signal.SIGTERM, None)
                await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
        assert draining.num_lost == 1


async def test_a_draining_server_is_alive_and_not_ready():
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        for path in ("/health", "/health/ready", "/health/live"):
            assert (await server.get(path)).status_code == 200
        server.app.state.server.draining = True
        assert (await server.get("/health")).status_code == 503
        assert (await server.get("/health/ready")).status_code == 503
        assert (await server.get("/health/live")).status_code == 200


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_step_that_does_not_end(goes_on: bool):
    hung = threading.Event()
    engine = FakeEngine(TOKENS, hung=hung)
    exit_s = None if goes_on else 0.3
    with (
        served(engine, stall_seconds=0.2) as server,
        running(server.app, drain_seconds=60, stall_exit_seconds=exit_s) as (
            draining,
            thread,
            port,
        ),
    ):
        state = server.app.state.server
        request = asyncio.create_task(post(port))
        await asyncio.to_thread(wait_until, lambda: state.is_stalled)
        if goes_on:
            assert (await server.get("/health/live")).status_code == 503
            refused = await post(port)
            assert refused.json()["error"]["code"] == "engine_stalled"
            hung.set()
            assert (await request).status_code == 200
            assert (await server.get("/health")).status_code == 200
        else:
            answer = await request
            assert answer.json()["error"]["code"] == "engine_stalled"
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()
            assert draining.gave_up
            hung.set()
