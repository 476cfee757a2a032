"""AsyncLLM: requests that come, go, are given up, and outlive their engine."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fdjax import AsyncLLM, EngineDeadError, QueueFullError, RequestError
from fdjax.engine.limits import NOTHING, Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.errors import RequestTimeoutError
from fdjax.generate.params import SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.engine_thread import MOST_UNREAD
from fdjax.serve.outputs import Chunk
from fdjax.serve.stream import Stream
from fdjax.serve.tokenizer import FastTokenizer
from tests.support.fake_engine import FakeEngine, FakeJob
from tests.support.http_server import wait_until

pytestmark = pytest.mark.anyio

TOKENIZER = FastTokenizer(resolve(SHIPPED) / "tokenizer.json")
TEXT = " upon a time there was a fox"
TOKENS = TOKENIZER.encode_plain(TEXT)
LONG = SamplingParams(max_tokens=32)
SLOW_S = 0.01
ONCE = TOKENIZER.encode("Once")

type Make = Callable[[FakeEngine], AsyncLLM]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes what is closed after the test."""
    made: list[AsyncLLM] = []

    def make(engine: FakeEngine) -> AsyncLLM:
        made.append(AsyncLLM(engine, TOKENIZER))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


async def collect(llm: AsyncLLM, params: SamplingParams = LONG) -> list[Chunk]:
    return [chunk async for chunk in llm.generate("Once", params)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_chunks_of_a_text(make: Make):
    engine = FakeEngine(TOKENS)
    chunks = await collect(make(engine))
    assert "".join(chunk.text or "" for chunk in chunks) == TEXT
    assert [chunk.token_ids for chunk in chunks] == [[token] for token in TOKENS]
    assert chunks[-1].finish_reason == "stop"
    assert engine.added[0].request.prompt == tuple(TOKENIZER.encode("Once"))


@pytest.mark.parametrize("prompt", [{"prompt": "Once"}, {"prompt_token_ids": ONCE}])
async def test_prompts_as_vllm_takes_them(make: Make, prompt: Any):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    assert [chunk async for chunk in llm.generate(prompt, LONG)]
    assert [*engine.added[0].request.prompt] == ONCE


async def test_many_at_once_all_on_one_thread(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    many = await asyncio.gather(*(collect(llm) for _ in range(50)))
    assert all(len(chunks) == len(TOKENS) for chunks in many)
    assert engine.threads == {"fdjax-engine"}
    assert llm.num_unfinished == 0


async def test_the_origin_reaches_the_engine(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    origin = Origin(tenant="somebody", priority=7, salt=b"salt")
    streams = await llm.start(["Once"], dataclasses.replace(LONG, n=2), origin)
    for stream in streams:
        assert len([chunk async for chunk in stream]) == len(TOKENS)
    assert [job.origin for job in engine.added] == [origin] * 2


async def test_samples_draw_with_seeds_of_their_own(make: Make):
    engine = FakeEngine(TOKENS)
    params = SamplingParams(seed=2**63 - 1, n=2)
    streams = await make(engine).start(["Once", [5]], params)
    asked = [(s.request.index, s.request.params.seed) for s in streams]
    assert asked == [(0, 2**63 - 1), (0, 0), (1, 2**63 - 1), (1, 0)]


async def test_all_samples_of_a_prompt_come_mixed(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    chunks = await collect(llm, dataclasses.replace(LONG, n=3))
    for sample in range(3):
        own = [chunk for chunk in chunks if chunk.sample == sample]
        assert "".join(chunk.text or "" for chunk in own) == TEXT
        assert own[-1].finish_reason == "stop"
    assert len(engine.added) == 3


async def test_leaving_the_iterator_aborts(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    llm = make(engine)
    chunks = llm.generate("Once", LONG)
    await anext(chunks)
    await chunks.aclose()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0
    assert len(await collect(llm)) == len(TOKENS), "the next request is served"


class Bounded(FakeEngine):
    """One whose queue has room for 4 samples."""

    def check_queue(
        self,
        more: Load,
        origin: Origin | None = None,
        *,
        claimed: Load = NOTHING,
        own: Load = NOTHING,
    ) -> None:
        waiting = Load(len(self.jobs), len(self.jobs), 0)
        QueueLimits(samples=4).check(waiting.plus(claimed), more)


async def test_of_many_at_once_those_without_room_cost_nothing(make: Make):
    """They are refused before the engine has taken any of the others."""
    engine = Bounded(TOKENS, step_s=SLOW_S)
    llm = make(engine)
    charged: list[int] = []

    def charge(num_tokens: int) -> contextlib.AbstractContextManager[None]:
        charged.append(num_tokens)
        return contextlib.nullcontext()

    def start(prompt: str = "Once") -> Awaitable[list[Stream]]:
        return llm.start([prompt], dataclasses.replace(LONG, n=2), charge=charge)

    came = await asyncio.gather(*(start() for _ in range(50)), return_exceptions=True)
    taken = [streams for streams in came if isinstance(streams, list)]
    refused = [error for error in came if isinstance(error, QueueFullError)]
    assert (len(taken), len(refused), len(charged)) == (2, 48, 2)
    for stream in [stream for streams in taken for stream in streams]:
        stream.close()
    await until(lambda: not engine.jobs)
    for _ in range(5):  # what is refused later keeps no room
        with pytest.raises(RequestError, match="max_model_len"):
            await start("Once " * 1000)
    assert len(await start()) == 2


async def test_two_hundred_cancelled_tasks(make: Make):
    """Some before the engine has them, some while they run."""
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    llm = make(engine)
    survivor = asyncio.create_task(collect(llm))
    tasks = [asyncio.create_task(collect(llm)) for _ in range(200)]
    await asyncio.sleep(SLOW_S * 2)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert len(await survivor) == len(TOKENS)
    await until(lambda: not engine.jobs)
    assert llm.num_unfinished == 0


async def test_cancelled_while_the_engine_takes_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    entered, leave, add = threading.Event(), threading.Event(), engine.add

    def slow_add(request: Request, origin: Origin | None = None) -> FakeJob:
        entered.set()
        assert leave.wait(5)
        return add(request, origin)

    monkeypatch.setattr(engine, "add", slow_add)
    llm = make(engine)
    task = asyncio.create_task(llm.start(["Once"], LONG))
    assert await asyncio.to_thread(entered.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leave.set()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0


async def test_a_stop_string_ends_the_request_in_the_engine(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    params = SamplingParams(max_tokens=32, stop=" time")
    chunks = await collect(make(engine), params)
    assert "".join(chunk.text or "" for chunk in chunks) == " upon a"
    assert chunks[-1].finish_reason == "stop"
    await until(lambda: len(engine.aborted) == 1)


@pytest.mark.parametrize(
    "prompt", [[], [-1], [99999], [1] * 64, None, ["Once"], {"x": "Once"}]
)
async def test_what_cannot_be_served_is_refused(make: Make, prompt: Any):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    with pytest.raises(RequestError, match="prompt 0"):
        await anext(llm.generate(prompt, LONG))
    assert not engine.added
    assert len(await collect(llm)) == len(TOKENS)


async def test_a_full_queue_takes_all_samples_or_none(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, max_jobs=4)
    llm = make(engine)
    first = await llm.start(["Once"], dataclasses.replace(LONG, n=2))
    with pytest.raises(QueueFullError):
        await llm.start(["Once"], dataclasses.replace(LONG, n=3))
    assert llm.num_unfinished == 2
    for stream in first:
        assert len([chunk async for chunk in stream]) == len(TOKENS)


async def test_a_full_queue_reads_no_text(make: Make, monkeypatch: pytest.MonkeyPatch):
    llm = make(FakeEngine(TOKENS, max_jobs=0))
    assert llm.texts is not None
    monkeypatch.setattr(llm.texts, "encode", None)
    with pytest.raises(QueueFullError):
        await llm.start(["Once"], LONG)


async def test_steps_go_on_whatever_is_asked(make: Make):
    """A command that brings another one, for ever."""
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    commands = llm._thread._commands
    num_asked = 0

    def again() -> None:
        nonlocal num_asked
        num_asked += 1
        if len(TOKENS) > engine.num_steps and num_asked < 10**6:
            commands.put(again)

    commands.put(again)
    assert len(await collect(llm)) == len(TOKENS)
    assert num_asked < 10**6


async def test_a_request_may_time_out_before_the_engine_has_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    engine = FakeEngine(TOKENS)
    leave, request = threading.Event(), engine.request

    def slow(*arguments: Any) -> Request:
        assert leave.wait(20)
        return request(*arguments)

    monkeypatch.setattr(engine, "request", slow)
    llm = make(engine)
    with pytest.raises(RequestTimeoutError, match=r"after 0\.05 seconds"):
        await llm.start(["Once"], LONG, seconds=0.05)
    leave.set()
    await until(lambda: len(engine.aborted) == 1)
    assert llm.num_unfinished == 0
    assert len(await collect(llm)) == len(TOKENS)


async def test_a_step_that_raises_ends_everything_at_once(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S, fails_at=3)
    llm = make(engine)
    assert (llm.is_running, llm.errored) == (True, False)
    tasks = [asyncio.create_task(collect(llm)) for _ in range(20)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {EngineDeadError}
    assert isinstance(results[0], EngineDeadError)
    assert isinstance(results[0].__cause__, FloatingPointError)
    assert (llm.is_running, llm.errored) == (False, True)
    with pytest.raises(EngineDeadError, match="has failed"):
        await collect(llm)


async def test_a_closed_one_serves_no_more(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    llm = make(engine)
    waiting = asyncio.create_task(collect(llm))
    await until(lambda: bool(engine.jobs))
    llm.close()
    for request in (waiting, collect(llm)):
        with pytest.raises(EngineDeadError, match="shut down"):
            await request
    assert (llm.is_running, llm.errored) == (False, False)


def test_a_loop_that_is_gone_keeps_no_request(make: Make):
    engine = FakeEngine(TOKENS, step_s=SLOW_S)
    llm = make(engine)

    async def leave_one_behind() -> None:
        await llm.start(["Once"], LONG)

    asyncio.run(leave_one_behind())
    asyncio.run(until(lambda: len(engine.aborted) == 1))
    assert len(asyncio.run(collect(llm))) == len(TOKENS)


async def test_who_does_not_read_is_not_made_for():
    """Memory stays bounded; the tokens are counted, and nothing is lost."""
    answer = [i % 100 for i in range(5000)]
    engine = FakeEngine(answer, per_step=8, max_model_len=10**6)
    llm = AsyncLLM(engine, None)
    try:
        params = SamplingParams(max_tokens=5000)
        slow, quick = await llm.start([[1], [2]], params)
        tokens = [token async for chunk in quick for token in chunk.token_ids]
        assert tokens == answer
        await asyncio.to_thread(wait_until, lambda: not engine.has_work)
        made = slow._ticket.num_put
        assert MOST_UNREAD < made <= MOST_UNREAD + 8
        assert llm.num_made == len(answer) + made
        tokens = [token async for chunk in slow for token in chunk.token_ids]
        assert tokens == answer
        assert llm.num_made == 2 * len(answer)
    finally:
        llm.close()
