"""Requests under way, which can be ended with an error that their clients are told."""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.keys import WATCHED_PATHS


@dataclass(eq=False)
class _Request:
    """One that is served by a task.

    Attributes:
        task: cancelled to end it.
        begun: the head of its answer is sent.
        streams: its answer is a stream of events.
        error: what it was ended with.
    """

    task: "asyncio.Task[object]"
    begun: bool = False
    streams: bool = False
    error: ApiError | None = None


class Underway:
    """All requests that are served, but for those that watch the server.

    Attributes:
        num_begun: requests so far.
        num_lost: requests whose clients did not get what they asked for.
    """

    def __init__(self) -> None:
        self._requests: set[_Request] = set()
        self.num_begun = self.num_lost = 0

    def __len__(self) -> int:
        return len(self._requests)

    def end(self, error: ApiError) -> None:
        """Ends all with an error.

        It is the answer of those that have none, and the last event of a stream. A
        whole answer that is on its way goes on.
        """
        for request in self._requests:
            if request.error is None and (request.streams or not request.begun):
                request.error = error
                request.task.cancel()
                self.num_lost += 1

    def give_up(self) -> None:
        """Counts those that were not ended as lost too."""
        self.num_lost += sum(request.error is None for request in self._requests)

    async def serve(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serves one request."""
        task = asyncio.current_task()
        assert task is not None
        request = _Request(task)
        self._requests.add(request)
        self.num_begun += 1

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.begun, request.streams = True, is_stream(message)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._requests.discard(request)  # it has all, and cannot be ended

        try:
            await app(scope, receive, sending)
        except asyncio.CancelledError:
            if request.error is None:
                raise
            task.uncancel()
            await _tell(request.error, request, scope, receive, send)
        finally:
            self._requests.discard(request)


class EndedWithWords:
    """Lets requests be ended, but for those that watch the server.

    Args:
        app: what serves them.
        underway: where they can be ended.
    """

    def __init__(self, app: ASGIApp, *, underway: Underway) -> None:
        self._app = app
        self._underway = underway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self._app(scope, receive, send)
        else:
            await self._underway.serve(self._app, scope, receive, send)


def is_stream(start: Message) -> bool:
    """Whether the head of an answer is that of a stream of events."""
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return kind.startswith("text/event-stream")


async def _tell(
    error: ApiError, request: _Request, scope: Scope, receive: Receive, send: Send
) -> None:
    if request.begun:
        error.note(scope)
        await send({"type": "http.response.body", "body": error.last_events})
    else:
        await error.send(scope, receive, send)
