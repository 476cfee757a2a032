"""Signals: what runs is finished, nothing new is taken, and there is a deadline."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Generator

import httpx2
import pytest

from fdjax.serve.http.run import DrainingServer
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import PROMPT, TEXT, TOKENS, Served, served, wait_until

pytestmark = pytest.mark.anyio

SLOW_S = 0.1


@contextlib.contextmanager
def running(
    server: Served, *, drain_seconds: float
) -> Generator[tuple[DrainingServer, threading.Thread, str]]:
    draining = DrainingServer(
        server.app, host="127.0.0.1", port=0, drain_seconds=drain_seconds
    )
    thread = threading.Thread(target=draining.run, daemon=True)
    thread.start()
    wait_until(lambda: draining.started)
    port = draining.servers[0].sockets[0].getsockname()[1]
    try:
        yield draining, thread, f"http://127.0.0.1:{port}"
    finally:
        draining.should_exit = draining.force_exit = True
        thread.join(timeout=5)
        assert not thread.is_alive()


async def post(url: str, *, stream: bool = False) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as client:
        return await client.post(
            f"{url}/v1/completions", json=PROMPT | {"stream": stream}
        )


async def test_under_load_nothing_is_lost():
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=20)
    with (
        served(engine) as server,
        running(server, drain_seconds=30) as (draining, thread, url),
    ):
        requests = [
            asyncio.create_task(post(url, stream=i % 2 == 0)) for i in range(20)
        ]
        await asyncio.to_thread(wait_until, lambda: len(engine.jobs) == 20)
        draining.handle_exit(signal.SIGTERM, None)
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{url}/health")).status_code == 503
        assert (await post(url)).status_code == 503
        for i, response in enumerate(await asyncio.gather(*requests)):
            assert response.status_code == 200
            if i % 2 == 0:
                assert response.text.endswith("data: [DONE]\n\n")
            else:
                assert response.json()["choices"][0]["text"] == TEXT
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive(), "it stops by itself"
    assert not engine.aborted


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_does_not_end_is_ended(signals: int):
    """By the deadline after one signal, at once after another."""
    engine = FakeEngine(TOKENS * 1000, step_s=SLOW_S, max_model_len=10**6)
    with (
        served(engine) as server,
        running(server, drain_seconds=(1, 60)[signals - 1]) as (draining, thread, url),
    ):
        body = {"prompt": "Once", "max_tokens": 10**5}
        async with httpx2.AsyncClient(timeout=20) as client:
            request = asyncio.create_task(
                client.post(f"{url}/v1/completions", json=body)
            )
            await asyncio.to_thread(wait_until, lambda: bool(engine.jobs))
            start = time.monotonic()
            for _ in range(signals):
                draining.handle_exit(signal.SIGTERM, None)
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
            assert (time.monotonic() - start >= 1) == (signals == 1)
            with contextlib.suppress(httpx2.HTTPError):
                assert (await request).status_code >= 500
        await asyncio.to_thread(wait_until, lambda: not engine.jobs)
    assert len(engine.aborted) == 1
