"""From a checked request to its answer, whole or as a stream of events."""

import contextlib
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from fdjax.engine.request import Logprob
from fdjax.errors import QueueFullError
from fdjax.generate.params import SamplingParams
from fdjax.serve.async_llm import Stream
from fdjax.serve.http.errors import ApiError, error_of
from fdjax.serve.http.metrics import Watch
from fdjax.serve.http.records import Work, record_of
from fdjax.serve.http.schemas import SamplingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.streams import ClientGoneError, unless_gone
from fdjax.serve.merging import merged
from fdjax.serve.outputs import Chunk, FinishText
from fdjax.serve.prompts import Prompt

# nginx's status for a client that closed the connection; only logs see it.
_CLIENT_CLOSED = 499
_FAILED = 500
_LOGGER = logging.getLogger(__name__)


@dataclass
class Result:
    """All that came of one sample.

    Attributes:
        text: of the output.
        token_ids: of the output.
        logprobs: one a token, where asked for.
        finish_reason: set at the end.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[Logprob] | None = None
    finish_reason: FinishText | None = None

    def add(self, chunk: Chunk) -> None:
        """Takes the next chunk."""
        self.text += chunk.text or ""
        self.token_ids += chunk.token_ids
        if chunk.logprobs is not None:
            self.logprobs = (self.logprobs or []) + chunk.logprobs
        self.finish_reason = chunk.finish_reason


class Format(Protocol):
    """How an endpoint writes its answers.

    Attributes:
        id_prefix: of the answer's id.
        whole: the name of a whole answer, in its `object`.
        part: the name of an event.
    """

    id_prefix: str
    whole: str
    part: str

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """One sample of a whole answer."""
        ...

    def openings(self, index: int) -> list[dict[str, Any]]:
        """What a stream says of a sample before its first token."""
        ...

    def delta(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """What a stream says of a chunk of a sample."""
        ...


@dataclass
class Generation:
    """Requests that the engine has taken, and how their answer begins."""

    scope: Scope
    server: Server
    format: Format
    streams: list[Stream]
    watches: list[Watch]
    n: int
    name: str
    include_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))
    num_made: int = 0

    @property
    def usage(self) -> dict[str, int]:
        """Tokens so far; a prompt counts once, however many samples it has."""
        prompts = sum(len(s.request.prompt) for s in self.streams[:: self.n])
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self.num_made,
            "total_tokens": prompts + self.num_made,
        }

    def frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What stands around choices."""
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.server.model.names[0],
            "choices": choices,
        }

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """All chunks, counted."""
        reason = "abort"
        try:
            async with contextlib.aclosing(merged(self.streams)) as chunks:
                async for index, chunk in chunks:
                    self.num_made += len(chunk.token_ids)
                    self.watches[index].chunk(chunk)
                    yield index, chunk
        except Exception:
            reason = "error"
            raise
        finally:
            for watch in self.watches:
                watch.end(reason)

    async def answer(self) -> dict[str, Any]:
        """The whole answer."""
        results = [Result() for _ in self.streams]
        async with contextlib.aclosing(self.chunks()) as chunks:
            async for index, chunk in chunks:
                results[index].add(chunk)
        choices = [self.format.choice(i, result) for i, result in enumerate(results)]
        return self.frame(self.format.whole, choices) | {"usage": self.usage}

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        no_usage = {"usage": None} if self.include_usage else {}

        def event(choice: dict[str, Any]) -> bytes:
            return _event(self.frame(self.format.part, [choice]) | no_usage)

        for index in range(len(self.streams)):
            for opening in self.format.openings(index):
                yield event(opening)
        try:
            async with contextlib.aclosing(self.chunks()) as chunks:
                async for index, chunk in chunks:
                    if chunk.text or chunk.logprobs or chunk.finish_reason:
                        yield event(self.format.delta(index, chunk))
        except Exception as error:  # the status is sent: only an event can tell
            told = error_of(error)
            if told.status == _FAILED:  # nobody else will tell of it
                _LOGGER.exception("a stream ended with an error")
            told.note(self.scope)
            yield _event(told.body)
        else:
            if self.include_usage:
                yield _event(self.frame(self.format.part, []) | {"usage": self.usage})
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        """Aborts what has not ended, and tells the record of it all."""
        for stream, watch in zip(self.streams, self.watches, strict=True):
            stream.close()
            watch.end("abort")
        record_of(self.scope).work = Work(
            response_id=self.name,
            params=self.streams[0].request.params,
            n=self.n,
            prompt_tokens=self.usage["prompt_tokens"],
            output_tokens=self.num_made,
            finish_reasons=tuple(watch.reason for watch in self.watches),
            queue_s=_least(watch.queue_s for watch in self.watches),
            first_token_s=_least(watch.first_token_s for watch in self.watches),
        )


class _EventStream(StreamingResponse):
    """Closes its generation even if the client left before the first event."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(
            generation.events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def respond(
    request: Request,
    server: Server,
    body: SamplingBody,
    *,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    make_format: Callable[[Sequence[Stream]], Format],
) -> Response:
    """Serves a request whose parameters are checked.

    Raises:
        ApiError: it asks for too much, or the server drains.
        RequestError: the engine refuses it.
        QueueFullError: too many requests wait.
        EngineDeadError: the engine has failed.
    """
    started, n = time.monotonic(), params.n
    record_of(request.scope).model = body.model or server.model.names[0]
    _check_counts(server, len(prompts), n)
    server.check_open()
    try:
        streams = await server.llm.start(
            prompts,
            params,
            priority=body.priority or 0,
            salt=(body.cache_salt or "").encode(),
        )
    except QueueFullError:
        server.metrics.rejections.inc()
        raise
    server.metrics.params_n.observe(n)
    layout = make_format(streams)
    generation = Generation(
        scope=request.scope,
        server=server,
        format=layout,
        streams=streams,
        watches=[Watch(server.metrics, stream, started) for stream in streams],
        n=n,
        name=f"{layout.id_prefix}-{uuid.uuid4().hex}",
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    if body.stream:
        return _EventStream(generation)
    try:
        return JSONResponse(await unless_gone(request, generation.answer()))
    except ClientGoneError:
        return Response(status_code=_CLIENT_CLOSED)
    finally:
        generation.close()


def _check_counts(server: Server, num_prompts: int, n: int) -> None:
    limits = server.limits
    for name, count, limit in (
        ("prompt", num_prompts, limits.prompts),
        ("n", n, limits.n),
        ("n", n * num_prompts, limits.samples),
    ):
        if count > limit:
            raise ApiError(
                f"{name} asks for {count} at once; ask for at most {limit}", param=name
            )


def _least(seconds: Iterable[float | None]) -> float | None:
    return min((value for value in seconds if value is not None), default=None)


def _event(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
