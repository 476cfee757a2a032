"""One streamed completion of an OpenAI-compatible server, timed; needs aiohttp."""

import asyncio
import importlib.util
import json
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.event_stream import (
    Completed,
    Piece,
    RequestFailed,
    completed,
    events,
    said,
)
from fdjax.cli.bench.options import ServerOptions
from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.replay import Clock
from fdjax.errors import ConfigError, to_install

_DETAIL = 300
# Servers of uvicorn close what was idle for 5 s: a request would meet that.
_IDLE_S = 4.0
# As long as it takes to note two pieces of the answers that come meanwhile.
_EVENTS_AT_ONCE = 8


def check_server(base_url: str) -> None:
    """Makes sure that requests can be sent.

    Raises:
        ConfigError: aiohttp is not installed, or the address is none.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(
            "fdjax bench serve needs aiohttp, which is not installed; "
            f"{to_install('serve')}"
        )
    parts = urllib.parse.urlsplit(base_url)
    # A report names the address, and must hold no password.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(
            f"--base-url is {base_url!r}; write it as http://127.0.0.1:8000"
        )


class _Answer(NamedTuple):
    """What came of an answer, and why no more did."""

    pieces: list[Piece]
    failure: RequestFailed | None


class Client:
    """Sends requests to one server.

    An asynchronous context manager; connections stay open between requests, and at its
    end every outcome is filled in.

    Args:
        server: which, and how it is asked.
        prompts: of the requests, as token ids, by their index.
    """

    def __init__(self, server: ServerOptions, prompts: Sequence[Sequence[int]]) -> None:
        base = server.base_url.rstrip("/").removesuffix("/v1")
        self._url = f"{base}/v1/completions"
        self._server = server
        self._prompts = prompts
        self._filling: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Client":
        import aiohttp

        headers = {"Content-Type": "application/json"}
        if self._server.api_key is not None:
            headers["Authorization"] = f"Bearer {self._server.api_key}"
        # The concurrency is the workload's; a proxy of the environment would be
        # measured too.
        self._http = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: Any) -> None:
        async with self._http:
            await asyncio.gather(*self._filling)

    async def warm_up(self, index: int, like: Arrival) -> None:
        """Sends one request that does not count.

        Raises:
            ConfigError: it failed; so would the others.
        """
        outcome = Outcome(index, 0.0, like.input_tokens, like.output_tokens)
        await _fill(outcome, await self._ask(outcome, time.perf_counter))
        if outcome.error is not None:
            raise ConfigError(
                f"{self._server.base_url} fails a request to warm up: {outcome.error}: "
                f"{outcome.detail or 'no more is known'}; look at --base-url, --model "
                "and --vocab-size, or leave it out by --warmup 0"
            )

    async def send(self, outcome: Outcome, clock: Clock) -> None:
        """Sends the request of an outcome, and waits for the end of the answer.

        What became of it is filled in later: to look at an event takes a quarter of
        what receiving it does, and would be in the times of those that come meanwhile.
        """
        answer = await self._ask(outcome, clock)
        self._filling.append(asyncio.create_task(_fill(outcome, answer)))

    async def _ask(self, outcome: Outcome, clock: Clock) -> _Answer:
        body = json.dumps(self._fields(outcome)).encode()
        pieces: list[Piece] = []
        failure = None
        outcome.sent_s = clock()
        try:
            async with asyncio.timeout(self._server.timeout):
                await self._receive(body, pieces, clock)
        except TimeoutError:
            limit = f"no complete answer within {self._server.timeout:g} s"
            failure = RequestFailed("timeout", limit)
        except RequestFailed as error:
            failure = error
        outcome.end_s = clock()
        return _Answer(pieces, failure)

    def _fields(self, outcome: Outcome) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self._server.model,
            "prompt": self._prompts[outcome.index],
            "max_tokens": outcome.asked_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return fields | ({"ignore_eos": True} if self._server.ignore_eos else {})

    async def _receive(self, body: bytes, pieces: list[Piece], clock: Clock) -> None:
        """Sends a request, and notes the pieces of the answer as they come."""
        import aiohttp

        sent = self._http.post(self._url, data=body, allow_redirects=False)
        try:
            async with sent as answer:
                if answer.status // 100 != 2:
                    text = await answer.text(errors="replace")
                    raise RequestFailed(f"HTTP {answer.status}", said(text))
                if answer.content_type != "text/event-stream":
                    found = f"the content type is {answer.content_type}"
                    raise RequestFailed("no event stream", found)
                async for piece in answer.content.iter_any():
                    pieces.append((clock(), piece))
        except aiohttp.ClientConnectorError as error:
            raise RequestFailed("cannot connect", str(error)) from error
        except aiohttp.ClientError as error:
            raise RequestFailed("connection lost", str(error)) from error


async def _fill(outcome: Outcome, answer: _Answer) -> None:
    """Says in an outcome what became of it."""
    try:
        await _read(answer, outcome)
    except RequestFailed as failure:
        outcome.error, outcome.detail = failure.kind, _clean(failure.detail)


async def _read(answer: _Answer, outcome: Outcome) -> None:
    """Takes in the events of an answer, up to its `[DONE]`.

    A few at a time: answers often end together, and those that come meanwhile would
    wait for all of them. What the server says is wrong goes before how it ended.
    """
    done = False
    for place, event in enumerate(events(answer.pieces)):
        if place % _EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        done = event.data == "[DONE]"
        if done:
            break
        _take(completed(event.data), outcome, event.at_s)
    if answer.failure is not None:
        raise answer.failure
    if not done:
        raise RequestFailed("incomplete stream", "it ended without [DONE]")
    if not outcome.token_s:
        raise RequestFailed("no tokens", "the stream ended without any")


def _take(event: Completed, outcome: Outcome, at_s: float) -> None:
    if event.error is not None:
        raise RequestFailed("error in the stream", event.error)
    # Some servers close with an event that has a reason and nothing else.
    if event.has_text or (event.has_choice and not (event.closes and outcome.token_s)):
        outcome.token_s.append(at_s)
    if event.usage is not None:
        outcome.prompt_tokens, outcome.output_tokens = event.usage


def _clean(text: str) -> str:
    """On one line, not too long, and harmless on a terminal."""
    line = " ".join(text.split())
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return kept if len(kept) <= _DETAIL else f"{kept[:_DETAIL]}..."
