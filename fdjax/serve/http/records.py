"""What became of every request: an id, a line of the log, and whoever else listens."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdjax.generate.params import SamplingParams
from fdjax.serve.http.errors import error_of
from fdjax.serve.http.keys import WATCHED_PATHS
from fdjax.serve.http.logs import REQUEST_ID
from fdjax.serve.http.tenants import name_of

HEADER = "x-request-id"

_LOGGER = logging.getLogger(__name__)
_PRINTABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_PATH = 200


@dataclass(frozen=True)
class Work:
    """What a request asked of the model, and got; never its words.

    Attributes:
        response_id: of the answer.
        params: of all samples.
        n: samples of each prompt.
        prompt_tokens: of all prompts, however many samples they have.
        output_tokens: of all samples.
        finish_reasons: of the samples.
        queue_s: until the engine let the first sample in, if it has.
        first_token_s: until the first tokens of any sample were there, if they were.
    """

    response_id: str
    params: SamplingParams
    n: int
    prompt_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    queue_s: float | None
    first_token_s: float | None


@dataclass
class Record:
    """One request of HTTP.

    Attributes:
        request_id: the client's, if it sent one that can be printed, or made up.
        method: of HTTP.
        path: without the query.
        trace_headers: the W3C's, which name the trace that it is part of.
        key: the name of the key that it brought, "" without one.
        model: the name that the model was asked for by, once it was found.
        status: of the answer; `None` where the client left before there was one.
        error: the code of the error it was answered with.
        work: what the engine did for it.
        started_ns: when its head was read, by the clock on the wall.
        duration_s: until the last byte of the answer was sent.
    """

    request_id: str
    method: str
    path: str
    trace_headers: dict[str, str]
    key: str = ""
    model: str | None = None
    status: int | None = None
    error: str | None = None
    work: Work | None = None
    started_ns: int = field(default_factory=time.time_ns)
    duration_s: float = 0.0

    @staticmethod
    def of(scope: Scope) -> "Record":
        """What is known at the beginning."""
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        names = ("traceparent", "tracestate")
        return Record(
            request_id=given if _PRINTABLE_ID.fullmatch(given) else uuid.uuid4().hex,
            method=scope["method"],
            path=scope["path"],
            trace_headers={name: headers[name] for name in names if name in headers},
        )

    def fields(self) -> dict[str, Any]:
        """What a log has of it; what is unknown is left out."""
        known: dict[str, Any] = {
            "request_id": self.request_id,
            "key": self.key or None,
            "method": self.method,
            "path": self.path[:_MAX_PATH],
            "status": self.status,
            "error": self.error,
            "duration_s": round(self.duration_s, 6),
        }
        if self.work is not None:
            known |= {
                "model": self.model,
                "n": self.work.n,
                "prompt_tokens": self.work.prompt_tokens,
                "output_tokens": self.work.output_tokens,
                "queue_s": _rounded(self.work.queue_s),
                "first_token_s": _rounded(self.work.first_token_s),
                "finish_reason": ",".join(sorted({*self.work.finish_reasons})),
            }
        return {name: value for name, value in known.items() if value is not None}


type Observer = Callable[[Record], None]


def record_of(scope: Scope) -> Record:
    """The record of the request that is being served."""
    return scope["state"]["record"]


def log(record: Record) -> None:
    """Writes one line; what asks every few seconds whether all is well is no news."""
    well = record.path in WATCHED_PATHS and record.status == 200
    level = logging.DEBUG if well else logging.INFO
    _LOGGER.log(level, "request", extra={"fields": record.fields()})


class Records:
    """Keeps a record of every request, and sends its id back.

    Args:
        app: what is watched.
        observers: called with each record when its request has ended.
    """

    def __init__(self, app: ASGIApp, *, observers: Sequence[Observer]) -> None:
        self._app = app
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record, start = Record.of(scope), time.monotonic()
        scope.setdefault("state", {})["record"] = record
        REQUEST_ID.set(record.request_id)  # for every line that is logged on the way

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[HEADER] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if record.status is not None:  # the answer has begun: nothing can be told
                raise
            _LOGGER.exception("a request has failed")
            await error_of(error).send(scope, receive, sending)
        finally:
            record.duration_s = time.monotonic() - start
            record.key = name_of(scope)
            for observe in self._observers:
                observe(record)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
