"""Requests that the engine has taken: counted, read, and ended whatever happens."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from starlette.types import Scope

from fdjax.errors import QueueFullError, QuotaError, RequestTimeoutError
from fdjax.generate.any_params import AnyParams, num_outputs
from fdjax.serve.http.asked import check_prompt_logprobs, check_size
from fdjax.serve.http.errors import ApiError, error_of, failed
from fdjax.serve.http.event_stream import EventStream
from fdjax.serve.http.metrics import Watch
from fdjax.serve.http.records import Work, record_of
from fdjax.serve.http.schemas import AskingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.streams import unless_gone
from fdjax.serve.http.tenants import name_of, origin_of, tenant_of
from fdjax.serve.merging import merged
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import CutPrompt
from fdjax.serve.stream import Stream
from fdjax.serve.turns.reader import TurnReader

_FAILED = 500
_LOGGER = logging.getLogger(__name__)


@dataclass
class Taken:
    """The samples of one request of HTTP.

    Attributes:
        scope: of the request.
        server: that serves it.
        streams: of its samples.
        watches: of them.
        n: samples of each prompt.
        name: the answer's id.
        created: seconds since the epoch.
        num_made: tokens that were read.
    """

    scope: Scope
    server: Server
    streams: list[Stream]
    watches: list[Watch]
    n: int
    name: str
    created: int = field(default_factory=lambda: int(time.time()))
    num_made: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """A prompt counts once, however many samples it has."""
        return sum(len(s.request.prompt) for s in self.streams[:: self.n])

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far, and how many of the prompts' were found in the cache."""
        prompts = self.num_prompt_tokens
        cached = sum(stream.num_cached for stream in self.streams[:: self.n])
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self.num_made,
            "total_tokens": prompts + self.num_made,
            "prompt_tokens_details": {"cached_tokens": cached},
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

    async def answered(
        self, request: Request, answer: Coroutine[Any, Any, Response]
    ) -> Response:
        """A whole answer; what has not ended is aborted if the client leaves.

        Raises:
            ClientGoneError: it has left.
        """
        try:
            return await unless_gone(request, answer)
        finally:
            self.close()

    def streamed(self, events: AsyncGenerator[bytes]) -> Response:
        """An answer as server-sent events."""
        return EventStream(self.scope, events, on_end=self.close)

    def told(self, error: Exception) -> ApiError:
        """What an event says of an error: the status is sent, and nobody else will."""
        told = error_of(error)
        if told.status == _FAILED:
            _LOGGER.error("a stream ended with an error", exc_info=error)
        told.note(self.scope)
        return told

    @property
    def _names(self) -> tuple[str, str]:
        return self.name, record_of(self.scope).request_id

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
        for samples in itertools.batched(self.watches, self.n):
            longest = max(watch.num_tokens for watch in samples)
            self.server.metrics.longest_outputs.observe(longest)
        record_of(self.scope).work = Work(
            response_id=self.name,
            params=self.streams[0].request.params,
            n=self.n,
            prompt_tokens=self.num_prompt_tokens,
            output_tokens=self.num_made,
            finish_reasons=tuple(watch.reason for watch in self.watches),
            queue_s=_least(watch.queue_s for watch in self.watches),
            first_token_s=_least(watch.first_token_s for watch in self.watches),
        )


async def ahead[T](
    request: Request,
    server: Server,
    body: AskingBody,
    params: AnyParams,
    work: Callable[[], Coroutine[Any, Any, T]],
) -> T:
    """What a request of one prompt needs before it can be taken.

    Nothing is done where there would be no room for it, nor for longer than the whole
    request may take.

    Raises:
        ApiError: see `take`, as for other errors.
    """
    check_size(server, num_prompts=1, params=params)
    server.check_open()
    origin = origin_of(request.scope, body.priority, body.cache_salt)
    with _counted(request, server), server.llm.room(1, params, origin):
        try:
            async with asyncio.timeout(server.limits.seconds):
                return await unless_gone(request, work())
        except TimeoutError:
            raise RequestTimeoutError from None


async def take(
    request: Request,
    server: Server,
    body: AskingBody,
    *,
    prompts: Sequence[CutPrompt],
    params: AnyParams,
    id_prefix: str,
    field: str = "prompt",
    make_reader: Callable[[], TurnReader] | None = None,
) -> Taken:
    """Lets the engine take a request whose parameters are checked.

    Whoever called this closes what it returns.

    Args:
        request: of HTTP.
        server: that serves it.
        body: of the request.
        prompts: of it.
        params: of each prompt.
        id_prefix: of the answer's id.
        field: that the prompts came in.
        make_reader: what reads a sample's text as an assistant's turn, one each.

    Raises:
        ApiError: it asks for too much, or the server drains.
        RequestError: the engine refuses it.
        QueueFullError: too many requests wait.
        RequestTimeoutError: its time was over before the engine had it.
        EngineDeadError: the engine has failed.
        ClientGoneError: nobody waits for it any more.
    """
    started, n = time.monotonic(), num_outputs(params)
    record_of(request.scope).model = body.model or server.model.names[0]
    check_size(server, num_prompts=len(prompts), params=params, field=field)
    server.check_open()
    tenant = tenant_of(request.scope)

    def charge(num_tokens: int) -> contextlib.AbstractContextManager[None]:
        check_prompt_logprobs(server, num_tokens, params)
        return tenant.account.prompts(num_tokens)

    starting = server.llm.start(
        prompts,
        params,
        origin_of(request.scope, body.priority, body.cache_salt),
        charge=charge,
        seconds=server.limits.seconds,
        make_reader=make_reader,
    )
    with _counted(request, server):
        streams = await unless_gone(request, starting)
    server.metrics.params_n.observe(n)
    taken = Taken(
        scope=request.scope,
        server=server,
        streams=streams,
        watches=[
            Watch(server.metrics, tenant.account, stream, started) for stream in streams
        ],
        n=n,
        name=f"{id_prefix}-{record_of(request.scope).request_id}",
    )
    taken.open()
    return taken


@contextlib.contextmanager
def _counted(request: Request, server: Server) -> Generator[None]:
    """Counts refusals of a queue that is full."""
    try:
        yield
    except QuotaError:
        tenant_of(request.scope).account.num_refused["max_queued_samples"] += 1
        raise
    except QueueFullError:
        server.metrics.rejections.inc()
        raise


def _least(seconds: Iterable[float | None]) -> float | None:
    return min((value for value in seconds if value is not None), default=None)
