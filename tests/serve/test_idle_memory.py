"""Memory is given back in pauses, and an error that was told holds nothing."""

import asyncio
import ctypes
import gc
import json
import pathlib
import resource
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fdjax.serve.http import json_aside, run
from fdjax.serve.idle_memory import IdleMemory, give_back
from tests.support.async_llm import until
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import LIMITS, PROMPT, TOKENS, running, served
from tests.support.waiting import wait_until

anyio = pytest.mark.anyio
PATH = "/v1/completions"
LONG = "a" * 2**17


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_once_in_each_pause():
    now, given = [0.0], list[float]()
    memory = IdleMemory(lambda: given.append(now[0]), seconds=2.0, clock=lambda: now[0])

    def watch(at: float, begun: int, *, busy: bool = False) -> None:
        now[0] = at
        memory.watch(begun=begun, busy=busy)

    watch(1.9, 0)
    assert not given
    watch(2.0, 0)
    watch(9.0, 0)
    assert given == [2.0]
    watch(10.0, 1, busy=True)
    watch(15.0, 1, busy=True)
    watch(16.9, 1)
    assert given == [2.0], "served until 15.0"
    watch(17.0, 1)
    assert given == [2.0, 17.0]
    watch(18.0, 2)  # came and went since the last look
    watch(19.9, 2)
    assert given == [2.0, 17.0]
    watch(20.0, 2)
    assert given == [2.0, 17.0, 20.0]


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this is not glibc"
)
def test_holes_are_given_back():
    blocks = [bytes([1]) * 2**16 for _ in range(2000)]
    kept = blocks[::100]  # among them the last, so that the rest is not the end
    kept.append(blocks[-1])
    del blocks
    before = _resident()
    give_back()
    assert before - _resident() > 60 * 2**20
    assert len(kept) == 21


def _resident() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@anyio
async def test_a_server_does_so(monkeypatch: pytest.MonkeyPatch):
    given = list[int]()
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        underway = server.app.state.server.underway

        def give() -> None:
            given.append(underway.num_begun)

        monkeypatch.setattr(run, "give_back", give)
        monkeypatch.setattr(run, "IDLE_SECONDS", 0.0)
        with running(server.app, drain_seconds=1):
            await asyncio.to_thread(wait_until, lambda: given == [0])
            assert (await server.post(PATH, PROMPT)).status_code == 200
            await asyncio.to_thread(wait_until, lambda: given == [0, 1])


class _Body(dict[str, Any]):
    """What a body says, whose end can be seen."""


@anyio
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (PROMPT, 200),
        (PROMPT | {"user": LONG}, 200),
        (PROMPT | {"prompt": 7.5}, 400),
        (PROMPT | {"prompt": 7.5, "user": LONG}, 400),
        (PROMPT | {"stop": ["a"] * 5000}, 400),
        (PROMPT | {"stop": ["a"] * 50_000}, 400),
        (PROMPT | {"prompt": "a " * 10_000}, 400),
        (PROMPT | {"prompt": "a " * (LIMITS.body_bytes // 2 - 1000)}, 400),
        (PROMPT | {"n": 1000}, 400),
        (PROMPT | {"model": "another"}, 404),
    ],
)
async def test_of_a_body_nothing_stays(
    body: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch
):
    """Not even where the collector never comes."""
    left, loads = list[weakref.ref[_Body]](), json.loads

    def seen(data: bytes) -> _Body:
        value = _Body(loads(data))
        left.append(weakref.ref(value))
        return value

    with served() as server:
        with monkeypatch.context() as patch:
            patch.setattr(json_aside.json, "loads", seen)
            answer = await server.post(PATH, body)
        assert answer.status_code == status, answer.text
        assert len(left) == 1
        await until(lambda: left[0]() is None)
