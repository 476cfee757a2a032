"""Rows and the queue, by key, over the shipped model."""

import asyncio
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from fdjax import LLM
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.wiring import application

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
BODY = {"prompt": [5], "temperature": 0, "ignore_eos": True}
KEYS = (
    '[keys.alice]\nkey = "a"\nmax_running_samples = 1\nmax_queued_samples = 2\n'
    '[keys.bob]\nkey = "b"\n'
)

type Serving = tuple[httpx2.AsyncClient, AsyncLLM]


class Steps:
    """Of an engine, as many as it is told to take."""

    def __init__(self, step: Callable[[], Any], serving: Any) -> None:
        self._step, self._commands = step, serving._running.thread._commands
        self._wanted, self._done = threading.Semaphore(0), 0

    def __call__(self) -> Any:
        assert self._wanted.acquire(timeout=60)
        made = self._step()
        self._done += 1
        return made

    async def go(self, count: int, *, taking: int) -> None:
        """Waits for so many requests to be taken after the first of some steps."""
        async with asyncio.timeout(60):
            while self._commands.qsize() < taking:
                await asyncio.sleep(0.001)
            wanted = self._done + count
            self._wanted.release(count)
            while self._done < wanted:
                await asyncio.sleep(0.001)

    def go_on(self) -> None:
        """As many as there are to take."""
        self._wanted.release(10**6)


@pytest.fixture
def serving(llm: LLM, tmp_path: pathlib.Path) -> Iterator[Serving]:
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    file.write_text(KEYS)
    app, running = application(
        llm.loaded, names=["tales"], sampling={}, keyring=Keyring(file=file)
    )
    transport = httpx2.ASGITransport(app)
    yield httpx2.AsyncClient(transport=transport, base_url="http://test"), running
    running.close()


async def test_a_key_has_its_rows_and_its_part_of_the_queue(
    llm: LLM, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    client, running = serving
    steps = Steps(llm.engine.step, running)
    monkeypatch.setattr(llm.engine, "step", steps)

    async def ask(key: str, *, n: int = 1, max_tokens: int = 1) -> httpx2.Response:
        return await client.post(
            COMPLETIONS,
            json=BODY | {"n": n, "max_tokens": max_tokens},
            headers={"authorization": f"Bearer {key}"},
        )

    async def until(alice: tuple[int, int]) -> None:
        async with asyncio.timeout(60):
            while running.statistics().tenants.get("alice") != alice:
                await asyncio.sleep(0.001)

    long = asyncio.create_task(ask("a", max_tokens=120))
    await steps.go(1, taking=0)
    await until((1, 0))
    more = asyncio.create_task(ask("a", n=2))
    await steps.go(1, taking=1)
    await until((1, 2))
    refused = await ask("a")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["message"].startswith(
        "max_queued_samples of 'alice' is 2, of which 2 wait, and this request has 1"
    )
    too_many = await ask("a", n=3)
    assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
    other = asyncio.create_task(ask("b"))
    await steps.go(4, taking=1)  # of the long request's fifteen
    assert (await other).is_success, "others have rows"
    assert not long.done(), "all that while one of alice's ran"
    assert not more.done()
    steps.go_on()
    assert (await long).is_success
    assert (await more).is_success
    metrics = (await client.get("/metrics")).text
    told = (
        'key_refusals_total{key="alice",model_name="tales",quota="max_queued_samples"}'
    )
    assert f"{told} 1.0" in metrics
