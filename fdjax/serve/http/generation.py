"""From a checked request to its answer, whole or as a stream of events."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fdjax.errors import QueueFullError, QuotaError
from fdjax.generate.beam_params import BeamSearchParams, num_outputs
from fdjax.generate.params import SamplingParams
from fdjax.serve.http.asked import check_size
from fdjax.serve.http.errors import DONE, error_of, event, failed
from fdjax.serve.http.metrics import Watch
from fdjax.serve.http.records import Work, record_of
from fdjax.serve.http.schemas import SamplingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.streams import ClientGoneError, unless_gone
from fdjax.serve.http.tenants import name_of, tenant_of
from fdjax.serve.http.whole import Columns, Result, whole_answer
from fdjax.serve.merging import merged
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import Prompt
from fdjax.serve.stream import Stream
from fdjax.serve.turns.reader import TurnReader

# nginx's status for a client that closed the connection; only logs see it.
_CLIENT_CLOSED = 499
_FAILED = 500
_LOGGER = logging.getLogger(__name__)


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
        """One sample of a whole answer, without log-probabilities."""
        ...

    def logprobs(self, index: int, chunk: Chunk) -> Columns | None:
        """Those of a sample's next chunk; `None` where they were not asked for."""
        ...

    def openings(self, index: int) -> list[dict[str, Any]]:
        """What a stream says of a sample before its first token."""
        ...

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """What a stream says of a chunk of a sample, one event each."""
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
    def _names(self) -> tuple[str, str]:
        return self.name, record_of(self.scope).request_id

    @property
    def usage(self) -> dict[str, int]:
        """Tokens so far; a prompt counts once, however many samples it has."""
        prompts = sum(len(s.request.prompt) for s in self.streams[:: self.n])
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self.num_made,
            "total_tokens": prompts + self.num_made,
        }

    def frame(self, kind: str) -> dict[str, Any]:
        """What stands before choices."""
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.server.model.names[0],
        }

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """All chunks, counted.

        Raises:
            ApiError: the engine has given up a sample.
        """
        reason = "abort"
        try:
            async with contextlib.aclosing(merged(self.streams)) as chunks:
                async for index, chunk in chunks:
                    self.num_made += len(chunk.token_ids)
                    self.watches[index].chunk(chunk)
                    if chunk.failure is None:
                        yield index, chunk
                    else:
                        self.server.metrics.failed(chunk.failure.code)
                        yield index, dataclasses.replace(chunk, finish_reason=None)
                        raise failed(chunk.failure)
        except Exception:
            reason = "error"
            raise
        finally:
            for watch in self.watches:
                watch.end(reason)

    async def answer(self) -> Response:
        """The whole answer."""
        results = [Result() for _ in self.streams]
        async with contextlib.aclosing(self.chunks()) as chunks:
            async for index, chunk in chunks:
                results[index].add(chunk, self.format.logprobs(index, chunk))
        choices = (
            result.parts(self.format.choice(index, result))
            for index, result in enumerate(results)
        )
        return whole_answer(self.frame(self.format.whole), choices, self.usage)

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        frame = self.frame(self.format.part)
        no_usage = {"usage": None} if self.include_usage else {}

        def part(choice: dict[str, Any]) -> bytes:
            return event(frame | {"choices": [choice]} | no_usage)

        for index in range(len(self.streams)):
            for opening in self.format.openings(index):
                yield part(opening)
        try:
            async with contextlib.aclosing(self.chunks()) as chunks:
                async for index, chunk in chunks:
                    for delta in self.format.deltas(index, chunk):
                        yield part(delta)
        except Exception as error:  # the status is sent: only an event can tell
            told = error_of(error)
            if told.status == _FAILED:  # nobody else will tell of it
                _LOGGER.exception("a stream ended with an error")
            told.note(self.scope)
            yield event(told.body)
        else:
            if self.include_usage:
                yield event(frame | {"choices": [], "usage": self.usage})
        yield DONE

    def open(self) -> None:
        """Lets whoever made it end it by its id, or by that of the request."""
        for name in self._names:
            self.server.abortable.add(name_of(self.scope), name, self.streams)

    def close(self) -> None:
        """Aborts what has not ended, and tells the record of it all."""
        for name in self._names:
            self.server.abortable.remove(name_of(self.scope), name, self.streams)
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
    params: SamplingParams | BeamSearchParams,
    make_format: Callable[[Sequence[Stream]], Format],
    make_reader: Callable[[], TurnReader] | None = None,
) -> Response:
    """Serves a request whose parameters are checked.

    Raises:
        ApiError: it asks for too much, or the server drains.
        RequestError: the engine refuses it.
        QueueFullError: too many requests wait.
        RequestTimeoutError: its time was over before the engine had it.
        EngineDeadError: the engine has failed.
    """
    started, n = time.monotonic(), num_outputs(params)
    record_of(request.scope).model = body.model or server.model.names[0]
    check_size(server, num_prompts=len(prompts), params=params)
    server.check_open()
    tenant = tenant_of(request.scope)
    try:
        streams = await server.llm.start(
            prompts,
            params,
            tenant.origin(body.priority or 0, body.cache_salt or ""),
            charge=tenant.account.prompts,
            seconds=server.limits.seconds,
            make_reader=make_reader,
        )
    except QuotaError:
        tenant.account.num_refused["max_queued_samples"] += 1
        raise
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
        watches=[
            Watch(server.metrics, tenant.account, stream, started) for stream in streams
        ],
        n=n,
        name=f"{layout.id_prefix}-{record_of(request.scope).request_id}",
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    generation.open()
    if body.stream:
        return _EventStream(generation)
    try:
        return await unless_gone(request, generation.answer())
    except ClientGoneError:
        return Response(status_code=_CLIENT_CLOSED)
    finally:
        generation.close()


def _least(seconds: Iterable[float | None]) -> float | None:
    return min((value for value in seconds if value is not None), default=None)
