"""Bodies bounded in bytes and in seconds, whether or not they say how long they are."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdjax.serve.http.errors import ApiError


class BodyLimit:
    """Reads a request's body before the application sees the request.

    Args:
        app: what is protected.
        max_bytes: of a body; more is answered with 413.
        seconds: until it is there; else 408.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await error.send(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; `None` where the client has gone."""
        if _declared_bytes(scope) > self._max_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._gather(receive)
        except TimeoutError:
            raise ApiError(
                f"the body was not complete after {self._seconds:g} seconds",
                status=408,
                headers={"Connection": "close"},
            ) from None

    async def _gather(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        # What still comes of the body is not read: the connection is of no more use.
        return ApiError(
            f"the body has more than {self._max_bytes} bytes; send less",
            status=413,
            code="body_too_large",
            headers={"Connection": "close"},
        )


def _declared_bytes(scope: Scope) -> int:
    """What Content-Length says; 0 where it says nothing that can be read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def _replayed(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
