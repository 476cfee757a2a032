"""Hostile requests for what a model can do besides to go on, and for pages."""

import asyncio
from typing import Any

from tests.support.attackers import CHATS, COMPLETIONS, Attackers

EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"


def _search(to: Attackers, width: int, **fields: Any) -> dict[str, Any]:
    search = {"use_beam_search": True, "beam_width": width, "n": 1, "ignore_eos": True}
    return {"prompt": [5, to.draw.randrange(6, 200)], **search, **fields}


async def wide_search(to: Attackers) -> str:
    """Of as many beams as there may be, or more."""
    width = to.draw.choice((6, 7, 8, 64, 512, 100_000))
    return await to.post(COMPLETIONS, _search(to, width, max_tokens=100))


async def long_searches(to: Attackers) -> str:
    """More than run at once, each for all of the model's length."""
    asked = (
        to.post(COMPLETIONS, _search(to, 4, max_tokens=to.draw.randrange(150, 250)))
        for _ in range(to.draw.randrange(2, 5))
    )
    return (await asyncio.gather(*asked))[-1]


async def left_searches(to: Attackers) -> str:
    """Searches whose clients leave, in the queue or while they run."""
    asked = (
        to.leave(COMPLETIONS, _search(to, to.draw.randrange(2, 8), max_tokens=250))
        for _ in range(to.draw.randrange(2, 10))
    )
    return (await asyncio.gather(*asked))[-1]


async def judged_search(to: Attackers) -> str:
    """One whose candidates' texts are looked at, in each step."""
    search = _search(to, 4, max_tokens=100, stop=["zzz"], stream=True)
    return await to.leave(COMPLETIONS, search)


async def many_vectors(to: Attackers) -> str:
    prompts = [[5] * to.draw.randrange(1, 255) for _ in range(256)]
    body = {"input": prompts, "pooling": to.draw.choice(("last", "mean"))}
    return await to.post(EMBEDDINGS, body)


async def left_vectors(to: Attackers) -> str:
    return await to.leave(EMBEDDINGS, {"input": [[5] * 200] * 256})


async def scored_prompts(to: Attackers) -> str:
    """All that a vocabulary says of each token, of prompts that share no prefix."""
    prompts = [[to.draw.randrange(5, 200)] * 200 for _ in range(16)]
    body = {"prompt": prompts, "max_tokens": 1, "prompt_logprobs": 20}
    return await to.post(COMPLETIONS, body)


async def scored_chat(to: Attackers) -> str:
    turn = {"role": "user", "content": "a " * to.draw.randrange(1, 80)}
    body = {"messages": [turn], "max_tokens": 1, "prompt_logprobs": 20}
    return await to.post(CHATS, body)


async def responses(to: Attackers) -> str:
    """With more items than anybody has, or a stream that is left."""
    item = {"role": "user", "content": "a"}
    if to.draw.random() < 0.5:
        count = to.draw.randrange(1_000, to.largest // 40)
        return await to.post(RESPONSES, {"input": [item] * count})
    body = {"input": [item], "max_output_tokens": 150, "stream": True}
    return await to.leave(RESPONSES, body)


async def pages_in_a_row(to: Attackers) -> str:
    path = to.draw.choice(("/docs", "/openapi.json", "/v1/models"))
    return await to.pipeline(path, to.draw.randrange(20, 200), key=True)


async def health_in_a_row(to: Attackers) -> str:
    """Over many connections, and without a key."""
    path = to.draw.choice(("/health", "/docs"))
    asked = (to.pipeline(path, 100, key=False) for _ in range(10))
    return (await asyncio.gather(*asked))[-1]


ALL = (
    wide_search,
    long_searches,
    left_searches,
    judged_search,
    many_vectors,
    left_vectors,
    scored_prompts,
    scored_chat,
    responses,
    pages_in_a_row,
    health_in_a_row,
)
