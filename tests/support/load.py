"""Clients that stream from a server, one request after the other, for some seconds."""

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

PROMPTS = ("Once upon a time", "The king said", "In the wood there was an old", "A fox")
_WAIT_S = 120.0


@dataclass
class Load:
    """What came of the requests.

    Attributes:
        seconds: of each request that was answered in full.
        gaps_s: seconds between two pieces of one of these answers.
        num_tokens: made for these.
        faults: what was wrong with the others.
    """

    seconds: list[float] = field(default_factory=list[float])
    gaps_s: list[float] = field(default_factory=list[float])
    num_tokens: int = 0
    faults: list[str] = field(default_factory=list[str])


async def load(
    url: str, *, clients: int, seconds: float, max_tokens: int, key: str | None = None
) -> Load:
    """Runs clients at once; each makes one request, and more until time is up.

    Args:
        url: of the server.
        clients: how many.
        seconds: until no new request is sent.
        max_tokens: the longest output asked for.
        key: of the API.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    limits = httpx2.Limits(max_connections=clients)
    until, done = time.monotonic() + seconds, Load()
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=_WAIT_S, limits=limits
    ) as client:

        async def talk(seed: int) -> None:
            draw = random.Random(seed)
            going = True
            while going:
                body = {
                    "prompt": draw.choice(PROMPTS),
                    "max_tokens": draw.randint(1, max_tokens),
                    "temperature": draw.choice([0.0, 0.8]),
                    "ignore_eos": True,
                }
                await _request(client, body, done)
                going = time.monotonic() < until

        await asyncio.gather(*(talk(seed) for seed in range(clients)))
    return done


async def _request(client: httpx2.AsyncClient, body: dict[str, Any], to: Load) -> None:
    start = time.monotonic()
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    pieces: list[str] = []
    marks: list[float] = []
    try:
        async with client.stream("POST", "/v1/completions", json=streamed) as response:
            async for piece in response.aiter_text():
                marks.append(time.monotonic())
                pieces.append(piece)
    except httpx2.HTTPError as error:
        to.faults.append(f"{type(error).__name__}: {error}")
        return
    fault = _fault(response.status_code, "".join(pieces), body["max_tokens"])
    if fault is None:
        to.seconds.append(time.monotonic() - start)
        to.gaps_s += [after - before for before, after in itertools.pairwise(marks)]
        to.num_tokens += body["max_tokens"]
    else:
        to.faults.append(fault)


def _fault(status: int, text: str, max_tokens: int) -> str | None:
    """What is wrong with a stream: it must be whole, and as long as was asked for."""
    if status != 200:
        return f"{status}: {text[:200]}"
    *events, done, end = text.split("\n\n")
    if (done, end) != ("data: [DONE]", ""):
        return f"the stream ends with {text[-100:]!r}"
    *parts, last = [json.loads(event.removeprefix("data: ")) for event in events]
    reasons = [part["choices"][0]["finish_reason"] for part in parts]
    if reasons != [None] * (len(parts) - 1) + ["length"]:
        return f"the stream's reasons are {reasons}"
    made = last["usage"]["completion_tokens"]
    return None if made == max_tokens else f"{made} tokens instead of {max_tokens}"
