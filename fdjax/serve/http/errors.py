"""Errors as the OpenAI API tells them: an object that names the field."""

import contextlib
import re
from collections.abc import Collection, Generator, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from fdjax.errors import (
    EngineDeadError,
    QueueFullError,
    QuotaError,
    RequestError,
    RequestTimeoutError,
)
from fdjax.generate.stopping import FinishReason
from fdjax.serve.http.encoding import encoded
from fdjax.serve.http.streams import ClientGoneError
from fdjax.serve.outputs import FAILURES, Failure

RETRY_AFTER_S = 1

DONE = b"data: [DONE]\n\n"
"""The last event of every stream."""

# nginx's status for a client that closed the connection; only logs see it.
_CLIENT_CLOSED = 499
_FAILED = 500
_MAX_MESSAGE = 1000
_FAILURES = {
    "grammar_too_slow": (400, "invalid_request_error"),
    "nothing_found": (400, "invalid_request_error"),
    "non_finite_logits": (500, "internal_error"),
    "request_timeout": (504, "timeout"),
}


class ApiError(Exception):
    """What a client is told.

    Args:
        message: for people.
        status: of HTTP.
        kind: OpenAI's `type`.
        param: the field of the request that is wrong.
        code: for programs.
        headers: of the response.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.param = param
        self._fields = {"type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        message = _encodable(str(self)[:_MAX_MESSAGE])
        fields = {k: v and _encodable(v) for k, v in self._fields.items()}
        return {"error": {"message": message, **fields}}

    def about(self, param: str | None) -> "ApiError":
        """The same of another field."""
        fields = self._fields
        return ApiError(
            str(self),
            status=self.status,
            kind=fields["type"] or "",
            param=param,
            code=fields["code"],
            headers=self.headers,
        )

    @property
    def response(self) -> JSONResponse:
        """The same as a response."""
        return JSONResponse(self.body, self.status, self.headers)

    @property
    def last_events(self) -> bytes:
        """The same as the end of a stream of events, whose status is sent."""
        return event(self.body) + DONE

    def note(self, scope: Scope) -> None:
        """Lets the request's record say what it was answered with."""
        if record := scope.get("state", {}).get("record"):
            record.error = self._fields["code"] or self._fields["type"]

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        self.note(scope)
        await self.response(scope, receive, send)


def event(content: dict[str, Any]) -> bytes:
    """An object as a server-sent event."""
    return b"data: %s\n\n" % encoded(content)


@contextlib.contextmanager
def refusals(fields: Collection[str], **renamed: str) -> Generator[None]:
    """Turns what may be wrong with a request into an error that names its field.

    Args:
        fields: of the request.
        renamed: words of messages that mean a field of another name.
    """
    try:
        yield
    except RequestError as error:
        words = (renamed.get(word, word) for word in re.findall(r"\w+", str(error)))
        param = next((word for word in words if word in fields), None)
        message = str(error)
        if width := renamed.get("beam_width"):  # which the client has not sent
            message = re.sub(r"\bbeam_width\b", width, message)
        raise ApiError(message, param=param) from error


def unavailable(message: str, *, code: str, retry: bool) -> ApiError:
    """503: the request is not wrong; `retry` says that it may be sent again here."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if retry else None
    return ApiError(
        message, status=503, kind="service_unavailable", code=code, headers=headers
    )


def too_many(message: str, *, retry_s: int) -> ApiError:
    """429: whoever asks has used up a quota; `retry_s` seconds later there is more."""
    return ApiError(
        f"{message}; try again in {retry_s} s",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_s)},
    )


def not_json(reason: str, *, param: str | None = None) -> ApiError:
    """400: the body, or the field `param` of it, cannot be read for some reason."""
    what = "the body is not JSON in UTF-8" if param is None else param
    return ApiError(f"{what}: {reason}", param=param, code="invalid_json")


def failed(failure: Failure) -> ApiError:
    """What to tell a client whose request the engine has given up."""
    status, kind = _FAILURES[failure.code]
    return ApiError(failure.message, status=status, kind=kind, code=failure.code)


def draining() -> ApiError:
    """503: the server shuts down."""
    return unavailable(
        "the server is shutting down; use another one", code="draining", retry=True
    )


def stalled(seconds: float) -> ApiError:
    """503: the engine's step has not ended for so long."""
    return unavailable(
        f"the engine has not ended its step for {seconds:.0f} seconds; use another "
        "server",
        code="engine_stalled",
        retry=True,
    )


def error_of(error: Exception) -> ApiError:
    """What to tell a client of an error; nothing of what was not raised on purpose."""
    match error:
        case ApiError():
            told = error
        case RequestError():
            told = ApiError(str(error))
        case QuotaError():
            told = too_many(str(error), retry_s=RETRY_AFTER_S)
        case QueueFullError():
            told = unavailable(str(error), code="queue_full", retry=True)
        case RequestTimeoutError():
            told = failed(FAILURES[FinishReason.TIMED_OUT])
        case EngineDeadError():
            told = unavailable(str(error), code="engine_dead", retry=False)
        case RequestValidationError():
            told = _invalid(error)
        case HTTPException(
            __cause__=ApiError() | RequestValidationError() | EngineDeadError() as cause
        ):  # of a body that was checked while it was read
            told = error_of(cause)
        case HTTPException(__cause__=ValueError() | RecursionError() as cause):
            told = not_json(str(cause))
        case HTTPException(status_code=status, detail=detail, headers=headers):
            told = ApiError(str(detail), status=status, headers=headers)
        case _:
            text = "the server failed; its log says why"
            told = ApiError(text, status=_FAILED, kind="internal_error")
    return told


def install(app: FastAPI) -> None:
    """Makes an application answer every error with OpenAI's object."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        told = error_of(error)
        told.note(request.scope)
        if told.status != _FAILED:  # else the log wants to know where it was
            _forget_frames(error)
        return told.response

    async def nobody(request: Request, error: Exception) -> Response:
        del request, error
        return Response(status_code=_CLIENT_CLOSED)

    app.add_exception_handler(ClientGoneError, nobody)
    for kind in (
        ApiError,
        RequestError,
        QueueFullError,
        RequestTimeoutError,
        EngineDeadError,
        RequestValidationError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, answer)


def _forget_frames(error: BaseException) -> None:
    """Lets an error that is told hold nothing of its request.

    It is held by the future that it came through, and that by a frame of its traceback:
    the body, and all that was made of it, would stay until the collector comes.
    """
    seen, left = set[int](), [error]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [more for more in (one.__cause__, one.__context__) if more]


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return not_json(first["ctx"]["error"])
    place = [str(part) for part in first["loc"][1:]]
    if not place:
        return ApiError("the body must be a JSON object, sent as application/json")
    if isinstance(first.get("ctx", {}).get("error"), UnicodeError):
        return not_json(first["msg"], param=place[0])
    return ApiError(f"{'.'.join(place)}: {first['msg']}", param=place[0])


def _encodable(text: str) -> str:
    """Lone surrogates, which JSON can bring in, cannot be sent back as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
