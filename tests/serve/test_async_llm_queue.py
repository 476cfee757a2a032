"""AsyncLLM where the queue is full: all samples of a request are taken, or none."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Awaitable

import pytest

from fdjax import QueueFullError, RequestError
from fdjax.serve.stream import Stream
from tests.support.async_llm import (
    LONG,
    SLOW_S,
    TOKENS,
    Make,
    tokens_of,
    until,
)
from tests.support.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def test_of_many_at_once_those_without_room_cost_nothing(make: Make):
    """They are refused before the engine has taken any of the others."""
    engine = FakeEngine(TOKENS, max_sequences=4, step_s=SLOW_S)
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
    await until(lambda: not engine.sequences)
    for _ in range(5):  # what is refused later keeps no room
        with pytest.raises(RequestError, match="max_model_len"):
            await start("Once " * 1000)
    assert len(await start()) == 2


async def test_a_full_queue_takes_all_samples_or_none(make: Make):
    going = threading.Event()
    engine = FakeEngine(TOKENS, hung=going, max_sequences=4)
    llm = make(engine)
    first = await llm.start(["Once"], dataclasses.replace(LONG, n=2))
    with pytest.raises(QueueFullError):
        await llm.start(["Once"], dataclasses.replace(LONG, n=3))
    assert llm.num_unfinished == 2
    going.set()
    for stream in first:
        assert tokens_of([chunk async for chunk in stream]) == TOKENS


async def test_a_full_queue_reads_no_text(make: Make, monkeypatch: pytest.MonkeyPatch):
    llm = make(FakeEngine(TOKENS, max_sequences=0))
    assert llm.texts is not None
    monkeypatch.setattr(llm.texts, "encode", None)
    with pytest.raises(QueueFullError):
        await llm.start(["Once"], LONG)
