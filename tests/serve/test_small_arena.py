"""Many requests over ten pages: each gets what it gets alone, and none is lost."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator

import pytest

from fdjax import AsyncLLM, RequestError
from fdjax.engine.engine import Engine
from tests.support.engines import GREEDY, shallow_model, tiny_engine

pytestmark = pytest.mark.anyio

PROMPTS = [[3 + i, *range(7, 7 + i)] for i in range(12)]
LONG = dataclasses.replace(GREEDY, max_tokens=20)

type Serving = tuple[Engine, AsyncLLM]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """As for all tests of this folder, for a fixture of the module."""
    return "asyncio"


@pytest.fixture(scope="module")
async def serving() -> AsyncGenerator[Serving]:
    """Ten pages of four tokens: not enough for two of the longest requests."""
    engine = tiny_engine(
        shallow_model(),
        max_model_len=64,
        max_num_seqs=2,
        num_pages=10,
        page_size=4,
        steps_per_launch=2,
    )
    llm = AsyncLLM(engine, None)
    yield engine, llm
    llm.close()


async def read(llm: AsyncLLM, prompt: list[int]) -> list[int]:
    return [token async for c in llm.generate(prompt, LONG) for token in c.token_ids]


async def test_all_of_a_crowd_are_served(serving: Serving):
    engine, llm = serving
    together = await asyncio.gather(*(read(llm, prompt) for prompt in PROMPTS * 3))
    assert engine.scheduler.num_preemptions > 0
    one_by_one = [await read(llm, prompt) for prompt in PROMPTS]
    assert together == one_by_one * 3
    assert engine.scheduler.pool.num_free == 10


async def test_a_prompt_longer_than_all_pages_is_refused(serving: Serving):
    engine, llm = serving
    expected = await read(llm, PROMPTS[3])
    told = r"need 16 pages of 4 tokens \([\d,]+ bytes\), but there are 10 \([\d,]+ b"
    with pytest.raises(RequestError, match=told):
        await read(llm, [7] * 45)
    assert await read(llm, PROMPTS[3]) == expected
    assert engine.scheduler.pool.num_free == 10
