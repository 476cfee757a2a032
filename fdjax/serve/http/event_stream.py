"""`EventStream`: an answer that is a stream of events."""

from collections.abc import AsyncGenerator, Callable
from typing import override

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fdjax.serve.http.pieces import writer


class EventStream(StreamingResponse):
    """Server-sent events, each written as soon as it is there.

    Args:
        scope: of the request.
        events: what to send.
        on_end: called at the end, also if the client left before the first event.
    """

    def __init__(
        self,
        scope: Scope,
        events: AsyncGenerator[bytes],
        *,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._scope = scope
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all, or what there is until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()

    @override
    async def stream_response(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        write = writer(self._scope, send)
        async for event in self._events:
            await write(event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
