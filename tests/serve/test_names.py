"""Requests of AsyncLLM by their names: in chunks, for abort, and each only once."""

import asyncio

import pytest

from fdjax import AsyncLLM, Chunk, RequestError, SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.serve.names import Names
from tests.support.async_llm import TOKENS, Make
from tests.support.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

TWICE = SamplingParams(max_tokens=32, n=2)


ENDLESS = SamplingParams(max_tokens=len(TOKENS) * 1000, n=2)


async def collect(llm: AsyncLLM, request_id: str | None = None) -> list[Chunk]:
    return [chunk async for chunk in llm.generate("Once", TWICE, request_id)]


async def test_chunks_have_the_name_of_their_request(make: Make):
    llm = make(FakeEngine(TOKENS))
    named, *others = await asyncio.gather(
        collect(llm, "0"), collect(llm), collect(llm), collect(llm, "tale")
    )
    assert {chunk.request_id for chunk in named} == {"0"}
    names = [{chunk.request_id for chunk in chunks} for chunks in others]
    assert names == [{"1"}, {"2"}, {"tale"}]


async def test_an_aborted_request_says_so_and_harms_no_other(make: Make):
    engine = FakeEngine(TOKENS * 1000, step_s=0.001, max_model_len=10**6)
    llm = make(engine)
    other = asyncio.create_task(collect(llm, "other"))
    seen: list[Chunk] = []
    async for chunk in llm.generate("Once", ENDLESS, "tale"):
        seen.append(chunk)
        if len(seen) == 2:
            await llm.abort("tale")
            await llm.abort("nobody")
    ends = [chunk for chunk in seen if chunk.finish_reason is not None]
    assert [chunk.finish_reason for chunk in ends] == ["abort", "abort"]
    assert {chunk.sample for chunk in ends} == {0, 1}
    assert sum(len(chunk.token_ids) for chunk in await other) == 2 * 32
    assert len(engine.aborted) == 2


async def test_a_name_is_free_again_at_the_end(make: Make):
    llm = make(FakeEngine(TOKENS, step_s=0.01))
    first = llm.generate("Once", TWICE, "tale")
    await anext(first)
    with pytest.raises(RequestError, match="request_id is 'tale', which another"):
        await collect(llm, "tale")
    await first.aclose()
    assert await collect(llm, "tale")


def test_what_is_ended_before_it_starts_ends_when_it_does():
    ended: list[FinishReason] = []

    class Recorder:
        def end(self, reason: FinishReason) -> None:
            ended.append(reason)

    names = Names()
    with names.taken("tale") as named:
        names.end("tale", FinishReason.ABORTED)
        assert not ended
        named.started([Recorder()])  # pyright: ignore[reportArgumentType]  (no Stream)
    assert ended == [FinishReason.ABORTED]
    names.end("tale", FinishReason.ABORTED)
    assert len(ended) == 1
