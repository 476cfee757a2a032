"""AsyncLLM: requests that come, and what becomes of them."""

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

from fdjax import AsyncLLM, RequestError
from fdjax.engine.origin import Origin
from fdjax.generate.params import SamplingParams
from fdjax.serve.tickets import MOST_UNREAD
from tests.support.async_llm import (
    LONG,
    ONCE,
    TEXT,
    TOKENS,
    Make,
    collect,
    commands_of,
    tokens_of,
    until,
)
from tests.support.fake_engine import FakeEngine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("apart")
async def test_chunks_of_a_text(make: Make):
    engine = FakeEngine(TOKENS)
    chunks = await collect(make(engine))
    assert "".join(chunk.text or "" for chunk in chunks) == TEXT
    assert [chunk.token_ids for chunk in chunks] == [[token] for token in TOKENS]
    assert chunks[-1].finish_reason == "stop"
    assert engine.added[0].request.prompt == tuple(ONCE)


@pytest.mark.parametrize("prompt", [{"prompt": "Once"}, {"prompt_token_ids": ONCE}])
async def test_prompts_as_vllm_takes_them(make: Make, prompt: Any):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    assert [chunk async for chunk in llm.generate(prompt, LONG)]
    assert [*engine.added[0].request.prompt] == ONCE


async def test_no_prompts_have_no_streams(make: Make):
    engine = FakeEngine(TOKENS)
    assert await make(engine).start([], LONG) == []
    assert engine.added == []


async def test_many_at_once_all_on_one_thread(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    many = await asyncio.gather(*(collect(llm) for _ in range(50)))
    assert all(tokens_of(chunks) == TOKENS for chunks in many)
    assert engine.threads == {"fdjax-engine"}
    assert llm.num_unfinished == 0


async def test_who_arrives_while_a_step_may_wait_is_in_it(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    held = threading.Event()
    engine.holds = lambda: bool(engine.num_steps) and not held.is_set()
    first = asyncio.create_task(collect(llm))
    await until(lambda: engine.num_steps == 1)
    second = asyncio.create_task(collect(llm))
    await until(lambda: commands_of(llm).qsize() == 1)
    assert engine.num_steps == 1
    held.set()
    await asyncio.gather(first, second)
    assert engine.num_steps == 1 + len(TOKENS)


async def test_the_origin_reaches_the_engine(make: Make):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    origin = Origin(tenant="somebody", priority=7, salt=b"salt")
    streams = await llm.start(["Once"], dataclasses.replace(LONG, n=2), origin)
    for stream in streams:
        assert tokens_of([chunk async for chunk in stream]) == TOKENS
    assert [sequence.origin for sequence in engine.added] == [origin] * 2


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


@pytest.mark.parametrize(
    "prompt", [[], [-1], [99999], [1] * 64, None, ["Once"], {"x": "Once"}]
)
async def test_what_cannot_be_served_is_refused(make: Make, prompt: Any):
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    with pytest.raises(RequestError, match="prompt 0"):
        await anext(llm.generate(prompt, LONG))
    assert not engine.added
    assert tokens_of(await collect(llm)) == TOKENS


async def test_steps_go_on_whatever_is_asked(make: Make):
    """A command that brings another one, for ever."""
    engine = FakeEngine(TOKENS)
    llm = make(engine)
    commands = commands_of(llm)
    num_asked = 0

    def again() -> None:
        nonlocal num_asked
        num_asked += 1
        if len(TOKENS) > engine.num_steps and num_asked < 10**6:
            commands.put(again)

    commands.put(again)
    assert tokens_of(await collect(llm)) == TOKENS
    assert num_asked < 10**6


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
