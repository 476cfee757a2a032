"""What tests of `AsyncLLM` share; `tests/serve/conftest.py` has the fixture `make`."""

import asyncio
import queue
from collections.abc import Callable, Iterable
from typing import Any

from fdjax import AsyncLLM
from fdjax.generate.params import SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.in_thread import InThread
from fdjax.serve.outputs import Chunk
from fdjax.serve.tokenizer import FastTokenizer
from tests.support.fake_engine import FakeEngine

TOKENIZER = FastTokenizer(resolve(SHIPPED) / "tokenizer.json")
TEXT = " upon a time there was a fox"
TOKENS = TOKENIZER.encode_plain(TEXT)
LONG = SamplingParams(max_tokens=32)
SLOW_S = 0.01
ONCE = TOKENIZER.encode("Once")

type Make = Callable[[FakeEngine], AsyncLLM]


async def collect(llm: AsyncLLM, params: SamplingParams = LONG) -> list[Chunk]:
    """All chunks of one request."""
    return [chunk async for chunk in llm.generate("Once", params)]


def tokens_of(chunks: Iterable[Chunk]) -> list[int]:
    """Of all; a reader that is slower than the engine gets several in one chunk."""
    return [token for chunk in chunks for token in chunk.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def commands_of(llm: AsyncLLM) -> queue.SimpleQueue[Any]:
    """What its engine's thread has not done yet."""
    running = llm._running
    assert isinstance(running, InThread)
    return running.thread._commands
