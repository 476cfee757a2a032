"""AsyncLLM: requests that are given up, time out, and outlive their engine."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fdjax import EngineDeadError
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.errors import RequestTimeoutError
from fdjax.generate.params import SamplingParams
from tests.support.async_llm import (
    LONG,
    SLOW_S,
    TOKENS,
    Make,
    collect,
    commands_of,
    tokens_of,
    until,
)
from tests.support.fake_engine import FakeEngine, FakeSequence

pytestmark = pytest.mark.anyio


async def test_leaving_the_iterator_aborts(make: Make):
    going = threading.Event()
    engine = FakeEngine(TOKENS, hung=going, hangs_after=1)
    llm = make(engine)
    chunks = llm.generate("Once", LONG)
    await anext(chunks)
    await chunks.aclose()
    going.set()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0
    assert tokens_of(await collect(llm)) == TOKENS, "the next request is served"


async def test_two_hundred_cancelled_tasks(make: Make):
    """Some while they run, some before the engine has them."""
    going = threading.Event()
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=1000)
    llm = make(engine)
    survivor = asyncio.create_task(collect(llm))
    tasks = [asyncio.create_task(collect(llm)) for _ in range(100)]
    await until(lambda: len(engine.added) == 101)
    engine.hung = going
    tasks += [asyncio.create_task(collect(llm)) for _ in range(100)]
    await until(lambda: commands_of(llm).qsize() > 50)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    engine.crowd = 0
    going.set()
    assert tokens_of(await survivor) == TOKENS
    await until(lambda: not engine.sequences)
    assert llm.num_unfinished == 0


async def test_cancelled_while_the_engine_takes_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    entered, leave, add = threading.Event(), threading.Event(), engine.add_samples

    def slow_add(
        requests: Sequence[Request], origin: Origin | None = None
    ) -> list[FakeSequence]:
        entered.set()
        assert leave.wait(60)
        return add(requests, origin)

    monkeypatch.setattr(engine, "add_samples", slow_add)
    llm = make(engine)
    task = asyncio.create_task(llm.start(["Once"], LONG))
    assert await asyncio.to_thread(entered.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leave.set()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0


async def test_a_stop_string_ends_the_request_in_the_engine(make: Make):
    going = threading.Event()
    engine = FakeEngine(TOKENS, hung=going, hangs_after=4)
    params = SamplingParams(max_tokens=32, stop=" time")
    chunks = await collect(make(engine), params)
    assert "".join(chunk.text or "" for chunk in chunks) == " upon a"
    assert chunks[-1].finish_reason == "stop"
    going.set()
    await until(lambda: len(engine.aborted) == 1)


async def test_a_request_may_time_out_before_the_engine_has_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    engine = FakeEngine(TOKENS)
    entered, leave, request = threading.Event(), threading.Event(), engine.request
    loop, later_s = asyncio.get_running_loop(), 0.0

    def slow(*arguments: Any) -> Request:
        entered.set()
        assert leave.wait(60)
        return request(*arguments)

    monkeypatch.setattr(engine, "request", slow)
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later_s)
    llm = make(engine)
    starting = asyncio.create_task(llm.start(["Once"], LONG, seconds=999.5))
    assert await asyncio.to_thread(entered.wait, 60)
    later_s = 1000.0
    with pytest.raises(RequestTimeoutError, match=r"after 999\.5 seconds"):
        await starting
    leave.set()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0
    assert tokens_of(await collect(llm)) == TOKENS


async def test_a_step_that_raises_ends_everything_at_once(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, fails_at=3)
    llm = make(engine)
    assert (llm.is_running, llm.errored) == (True, False)
    tasks = [asyncio.create_task(collect(llm)) for _ in range(20)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {EngineDeadError}
    assert isinstance(results[0], EngineDeadError)
    assert isinstance(results[0].__cause__, FloatingPointError)
    assert (llm.is_running, llm.errored) == (False, True)
    with pytest.raises(EngineDeadError, match="has failed"):
        await collect(llm)


async def test_a_closed_one_serves_no_more(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, crowd=2)  # who is alone gets no token
    llm = make(engine)
    waiting = asyncio.create_task(collect(llm))
    await until(lambda: bool(engine.sequences))
    llm.close()
    for request in (waiting, collect(llm)):
        with pytest.raises(EngineDeadError, match="shut down"):
            await request
    assert (llm.is_running, llm.errored) == (False, False)


def test_a_loop_that_is_gone_keeps_no_request(make: Make):
    going = threading.Event()
    engine = FakeEngine(TOKENS, hung=going)
    llm = make(engine)

    async def leave_one_behind() -> None:
        await llm.start(["Once"], LONG)

    asyncio.run(leave_one_behind())
    going.set()
    asyncio.run(until(lambda: len(engine.aborted) == 1))
    assert tokens_of(asyncio.run(collect(llm))) == TOKENS
