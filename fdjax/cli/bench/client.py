"""One streamed completion of an OpenAI-compatible server, timed; needs httpx2."""

import asyncio
import importlib.util
import json
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.options import ServerOptions
from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.replay import Clock
from fdjax.errors import ConfigError, to_install

_DETAIL = 300


def check_server(base_url: str) -> None:
    """Makes sure that requests can be sent.

    Raises:
        ConfigError: httpx2 is not installed, or the address is none.
    """
    if importlib.util.find_spec("httpx2") is None:
        raise ConfigError(
            "fdjax bench serve needs httpx2, which is not installed; "
            f"{to_install('serve')}"
        )
    parts = urllib.parse.urlsplit(base_url)
    # A report names the address, and must hold no password.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(
            f"--base-url is {base_url!r}; write it as http://127.0.0.1:8000"
        )


class RequestFailed(Exception):
    """A request has failed: what kind of failure, and more about it."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


class Client:
    """Sends requests to one server.

    An asynchronous context manager; connections stay open between requests.

    Args:
        server: which, and how it is asked.
        prompts: of the requests, as token ids, by their index.
    """

    def __init__(self, server: ServerOptions, prompts: Sequence[Sequence[int]]) -> None:
        import httpx2

        base = server.base_url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json"}
        if server.api_key is not None:
            headers["Authorization"] = f"Bearer {server.api_key}"
        # The concurrency is the workload's; a proxy of the environment would be
        # measured too.
        self._http = httpx2.AsyncClient(
            base_url=f"{base}/v1/",
            headers=headers,
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        self._server = server
        self._prompts = prompts

    async def __aenter__(self) -> "Client":
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._http.__aexit__(*error)

    async def warm_up(self, index: int, like: Arrival) -> None:
        """Sends one request that does not count.

        Raises:
            ConfigError: it failed; so would the others.
        """
        outcome = Outcome(index, 0.0, like.input_tokens, like.output_tokens)
        await self.send(outcome, time.perf_counter)
        if outcome.error is not None:
            raise ConfigError(
                f"{self._server.base_url} fails a request to warm up: {outcome.error}: "
                f"{outcome.detail or 'no more is known'}; look at --base-url, --model "
                "and --vocab-size, or leave it out by --warmup 0"
            )

    async def send(self, outcome: Outcome, clock: Clock) -> None:
        """Sends the request of an outcome, and fills in what became of it."""
        body = json.dumps(self._fields(outcome)).encode()
        outcome.sent_s = clock()
        try:
            async with asyncio.timeout(self._server.timeout):
                await self._stream(body, outcome, clock)
        except TimeoutError:
            outcome.error = "timeout"
            outcome.detail = f"no complete answer within {self._server.timeout:g} s"
        except RequestFailed as failure:
            outcome.error, outcome.detail = failure.kind, _clean(failure.detail)
        outcome.end_s = clock()

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

    async def _stream(self, body: bytes, outcome: Outcome, clock: Clock) -> None:
        import httpx2

        try:
            async with self._http.stream("POST", "completions", content=body) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise RequestFailed(
                        f"HTTP {answer.status_code}", _said(answer.text)
                    )
                await _read(httpx2.EventSource(answer), outcome, clock)
        except httpx2.ConnectError as error:
            raise RequestFailed("cannot connect", str(error)) from error
        except httpx2.SSEError as error:
            raise RequestFailed("no event stream", str(error)) from error
        except httpx2.RequestError as error:
            raise RequestFailed("connection lost", str(error)) from error


async def _read(events: Any, outcome: Outcome, clock: Clock) -> None:
    """Takes in the events of a stream, up to its `[DONE]`.

    And goes on to the end of the answer: else the connection could not be used again,
    and the next request would be measured with a new one.
    """
    done = False
    async for event in events:
        if not done and event.data != "[DONE]":
            _take(_parsed(event.data), outcome, clock())
        done = done or event.data == "[DONE]"
    if not done:
        raise RequestFailed("incomplete stream", "it ended without [DONE]")
    if not outcome.token_s:
        raise RequestFailed("no tokens", "the stream ended without any")


def _take(event: "_Event", outcome: Outcome, now: float) -> None:
    if event.error is not None:
        raise RequestFailed("error in the stream", event.error)
    # Some servers close with an event that has a reason and nothing else.
    if event.has_text or (event.has_choice and not (event.closes and outcome.token_s)):
        outcome.token_s.append(now)
    if event.usage is not None:
        outcome.prompt_tokens, outcome.output_tokens = event.usage


class _Event(NamedTuple):
    """What counts of an event of a stream."""

    error: str | None
    has_choice: bool
    has_text: bool
    closes: bool
    usage: tuple[int, int] | None


def _parsed(data: str) -> _Event:
    try:
        fields = json.loads(data)
        choices = fields.get("choices") or []
        usage = fields.get("usage")
        return _Event(
            error=_said(data) if "error" in fields else None,
            has_choice=bool(choices),
            has_text=any(choice.get("text") for choice in choices),
            closes=any(choice.get("finish_reason") for choice in choices),
            usage=usage and (usage["prompt_tokens"], usage["completion_tokens"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RequestFailed("malformed event", data) from None


def _said(body: str) -> str:
    """The message of OpenAI's error object, or what else the server wrote."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body


def _clean(text: str) -> str:
    """On one line, not too long, and harmless on a terminal."""
    line = " ".join(text.split())
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return kept if len(kept) <= _DETAIL else f"{kept[:_DETAIL]}..."
