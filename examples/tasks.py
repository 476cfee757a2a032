"""Requests of asyncio's tasks, one of which changes its mind."""

import asyncio
import contextlib

import fdjax
from fdjax.serve.async_llm import AsyncLLM

TALE = fdjax.SamplingParams(temperature=0.7, top_k=50, max_tokens=30, seed=5)


async def told(llm: AsyncLLM, prompt: str) -> str:
    """A whole text."""
    return "".join([chunk.text or "" async for chunk in llm.generate(prompt, TALE)])


async def cut_short(llm: AsyncLLM, prompt: str) -> str:
    """The first words: who leaves the loop ends the request."""
    async with contextlib.aclosing(llm.generate(prompt, TALE)) as chunks:
        async for chunk in chunks:
            return chunk.text or ""
    return ""


async def main() -> None:
    """Runs three requests at once."""
    loaded = fdjax.LLM(max_model_len=256, max_num_seqs=4)
    llm = AsyncLLM(loaded.engine, loaded.tokenizer)
    try:
        tales = (told(llm, "Once upon a time"), told(llm, "The king"))
        for text in await asyncio.gather(*tales, cut_short(llm, "The wolf")):
            print(text)
        assert llm.num_unfinished == 0
    finally:
        llm.close(seconds=5.0)


if __name__ == "__main__":
    asyncio.run(main())
