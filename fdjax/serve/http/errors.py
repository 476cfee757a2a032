"""Errors as the OpenAI API tells them: an object that names the field."""

import contextlib
import re
from collections.abc import Collection, Generator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from fdjax.errors import EngineDeadError, QueueFullError, RequestError

RETRY_AFTER_S = 1

_MAX_MESSAGE = 1000


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
        self._fields = {"type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        message = _encodable(str(self)[:_MAX_MESSAGE])
        fields = {k: v and _encodable(v) for k, v in self._fields.items()}
        return {"error": {"message": message, **fields}}

    @property
    def response(self) -> JSONResponse:
        """The same as a response."""
        return JSONResponse(self.body, self.status, self.headers)

    def note(self, scope: Scope) -> None:
        """Lets the request's record say what it was answered with."""
        if record := scope.get("state", {}).get("record"):
            record.error = self._fields["code"] or self._fields["type"]

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        self.note(scope)
        await self.response(scope, receive, send)


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
        raise ApiError(str(error), param=param) from error


def unavailable(message: str, *, code: str, retry: bool) -> ApiError:
    """503: the request is not wrong; `retry` says that it may be sent again here."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if retry else None
    return ApiError(
        message, status=503, kind="service_unavailable", code=code, headers=headers
    )


def error_of(error: Exception) -> ApiError:
    """What to tell a client of an error; nothing of what was not raised on purpose."""
    match error:
        case ApiError():
            told = error
        case RequestError():
            told = ApiError(str(error))
        case QueueFullError():
            told = unavailable(str(error), code="queue_full", retry=True)
        case EngineDeadError():
            told = unavailable(str(error), code="engine_dead", retry=False)
        case RequestValidationError():
            told = _invalid(error)
        case HTTPException(status_code=status, detail=detail, headers=headers):
            told = ApiError(str(detail), status=status, headers=headers)
        case _:
            text = "the server failed; its log says why"
            told = ApiError(text, status=500, kind="internal_error")
    return told


def install(app: FastAPI) -> None:
    """Makes an application answer every error with OpenAI's object."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        told = error_of(error)
        told.note(request.scope)
        return told.response

    for kind in (
        ApiError,
        RequestError,
        QueueFullError,
        EngineDeadError,
        RequestValidationError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, answer)


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError("the body is not JSON", code="invalid_json")
    place = [str(part) for part in first["loc"][1:]]
    if not place:
        return ApiError("the body must be a JSON object, sent as application/json")
    return ApiError(f"{'.'.join(place)}: {first['msg']}", param=place[0])


def _encodable(text: str) -> str:
    """Lone surrogates, which JSON can bring in, cannot be sent back as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
