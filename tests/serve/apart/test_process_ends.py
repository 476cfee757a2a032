"""An engine in a process of its own: how it ends, and what is told where it does."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from fdjax import AsyncLLM, EngineDeadError, QueueFullError, SamplingParams
from fdjax.engine.origin import Origin
from fdjax.serve.apart.client import EngineProcess
from fdjax.serve.apart.launch import StartError
from fdjax.serve.stream import Stream
from fdjax.serve.tickets import MOST_UNREAD
from tests.support.async_llm import TOKENS, until
from tests.support.fake_apart import fake_apart, launch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LONG = SamplingParams(max_tokens=5000)
ENDLESS = {"answer": TOKENS * 1000, "max_model_len": 10**6, "step_s": 0.001}


def over(engine: EngineProcess) -> AsyncLLM:
    return AsyncLLM.over(engine, None)


def pid_of(engine: EngineProcess) -> int:
    return engine._process.pid


async def started(llm: AsyncLLM, count: int) -> list[Stream]:
    return [(await llm.start([[5]], LONG))[0] for _ in range(count)]


async def test_killed_under_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.serve.apart.client._REAPED_S", 60.0)
    engine = fake_apart(**ENDLESS)
    llm = over(engine)
    streams = await started(llm, 5)
    for stream in streams:
        await anext(stream)
    os.kill(pid_of(engine), signal.SIGKILL)
    text = r"the engine has failed \(its process was ended by SIGKILL\); start it again"
    for stream in streams:
        with pytest.raises(EngineDeadError, match=text):
            async for _ in stream:
                pass
    assert llm.errored and not llm.is_running and not llm.num_unfinished
    with pytest.raises(EngineDeadError, match=text):
        await started(llm, 1)
    await llm.look()
    assert llm.close(seconds=60)


async def test_a_step_that_fails():
    llm = over(fake_apart(**ENDLESS, fails_at=3))
    (stream,) = await started(llm, 1)
    text = r"the engine has failed \(FloatingPointError\); start it again"
    with pytest.raises(EngineDeadError, match=text):
        async for _ in stream:
            pass
    with pytest.raises(EngineDeadError, match=text):
        await started(llm, 1)
    assert llm.errored
    assert llm.close(seconds=60)


async def test_shut_down_while_it_serves():
    engine = fake_apart(**ENDLESS)
    llm = over(engine)
    (stream,) = await started(llm, 1)
    assert await asyncio.to_thread(llm.close, seconds=60)
    with pytest.raises(EngineDeadError, match="the engine was shut down"):
        async for _ in stream:
            pass
    assert not llm.errored
    assert engine._process.returncode == 0


async def test_who_does_not_read_is_not_made_for():
    """One does not read, and the other gets more and more of its own meanwhile."""
    llm, whole = over(fake_apart(**ENDLESS)), TOKENS * 1000
    slow, quick = await started(llm, 2)
    made, unread = list[int](), -1
    while unread < slow.num_unread:  # until the engine has heard that it is behind
        unread = slow.num_unread
        made += await some_of(quick, 2 * MOST_UNREAD)
    assert made == whole[: len(made)]
    assert MOST_UNREAD < unread < 5000
    read = await some_of(slow, unread + 2 * MOST_UNREAD)
    assert read == whole[: len(read)]
    llm.close()


async def some_of(stream: Stream, count: int) -> list[int]:
    """So many tokens, or those of a chunk more."""
    tokens = list[int]()
    while len(tokens) < count:
        tokens += (await anext(stream)).token_ids
    return tokens


async def test_as_many_as_may_wait():
    """Of many that come at once, just so many are taken."""
    llm = over(fake_apart(**ENDLESS, max_sequences=8))
    asked = (llm.start([[5]], LONG) for _ in range(20))
    results = await asyncio.gather(*asked, return_exceptions=True)
    streams = [one for one in results if isinstance(one, list)]
    assert len(streams) == 8
    assert sum(isinstance(one, QueueFullError) for one in results) == 12
    with (  # the front knows it, and asks nobody
        pytest.raises(QueueFullError, match="8 samples wait, and 8 may"),
        llm.room(1, LONG, Origin()),
    ):
        pass
    for (stream,) in streams:
        stream.close()
    async with asyncio.timeout(60):
        while engine_load(llm):
            await asyncio.sleep(0.01)
    (stream,) = await started(llm, 1)
    stream.close()
    llm.close()


def engine_load(llm: AsyncLLM) -> int:
    running = llm._running
    assert isinstance(running, EngineProcess)
    return running._waiting.load.samples


async def test_a_step_that_hangs_is_seen():
    engine = fake_apart(**ENDLESS | {"step_s": 30})
    llm = over(engine)
    (stream,) = await started(llm, 1)
    await until(lambda: llm.step_age_s > 0.3)
    assert await asyncio.to_thread(llm.close, seconds=0.1) is False
    stream.close()


async def test_a_process_that_stands_still_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.serve.apart.client._SILENT_S", 1.0)
    engine = fake_apart(**ENDLESS)
    llm = over(engine)
    await llm.look()
    os.kill(pid_of(engine), signal.SIGSTOP)
    await until(lambda: llm.step_age_s > 1.0)
    os.kill(pid_of(engine), signal.SIGCONT)
    await until(lambda: not llm.step_age_s)
    assert await asyncio.to_thread(llm.close, seconds=60)


async def test_signals_are_for_the_front():
    engine = fake_apart(**ENDLESS)
    llm = over(engine)
    (stream,) = await started(llm, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid_of(engine), number)
    for _ in range(20):
        await anext(stream)
    stream.close()
    assert await asyncio.to_thread(llm.close, seconds=60)


def test_it_ends_with_its_front():
    """However that ends: killed, it can say nothing."""
    code = (
        "import time\nfrom tests.support.fake_apart import fake_apart\n"
        "print(fake_apart(answer=[1])._process.pid, flush=True)\ntime.sleep(100)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        pid = int(front.stdout.readline())
        front.kill()
    wait_until(lambda: has_ended(pid), seconds=60)


def has_ended(pid: int) -> bool:
    """Nobody may have asked how: then something of it is left."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.parametrize("status", [1, 3])
def test_a_start_that_fails(status: int):
    process = launch(exits=status)
    with pytest.raises(StartError) as caught:
        process.ready()
    assert caught.value.status == status
    process.end()


def test_a_start_that_is_given_up():
    process = launch(answer=[1])
    process.end()
    assert process._process.returncode == -signal.SIGKILL
