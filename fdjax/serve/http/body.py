"""Bodies bounded in bytes and in seconds, whether or not they say how long they are.

What a request has said stays in memory until it is answered, also what nobody reads:
so bodies of requests that are served are bounded together, too.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdjax.engine.limits import leaves_room
from fdjax.serve.http.errors import RETRY_AFTER_S, ApiError
from fdjax.serve.http.tenants import Tenant, found_tenant

# Shorter ones are let in however many there are, which connections bound.
_SHORT_BYTES = 2**16


@dataclass(eq=False)
class _Body:
    """What has come of a body.

    Attributes:
        waiting: the time that it has; ends whoever waits for the rest.
        data: as far as it has come.
        gave_way: to others; nothing more is wanted of it.
    """

    waiting: asyncio.Timeout
    data: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class BodyLimit:
    """Reads a request's body before the application sees the request.

    Where bodies that are on their way have more bytes together than they may, the one
    that has most of them gives way. So who sends large ones slowly has no room
    that others want, and a body that comes in one piece needs none.

    Longer ones of requests that are served have as many bytes together. There, what
    came first stays, and where there are several keys, each leaves room to others.

    Args:
        app: what is protected.
        max_bytes: of a body; more is answered with 413.
        max_bytes_underway: of all whose ends have not come, and of all that are served;
            whoever gives way is answered with 503.
        seconds: until it is there; else 408.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_bytes_underway: int, seconds: float
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_bytes_underway = max_bytes_underway
        self._seconds = seconds
        self._underway: set[_Body] = set()
        self._num_bytes = 0
        self._held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            data = await self._read(scope, receive)
            if data is None:
                return
            room = self._room(found_tenant(scope), len(data))
        except ApiError as error:
            await error.send(scope, receive, send)
            return
        with room:
            await self._app(scope, _replayed(data, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; `None` where the client has gone."""
        if _declared_bytes(scope) > self._max_bytes:
            raise self._too_large()
        body = _Body(asyncio.timeout(self._seconds))
        try:
            async with body.waiting:
                return await self._gather(body, receive)
        except TimeoutError:
            raise self._gave_way() if body.gave_way else self._too_late() from None
        finally:
            self._forget(body)

    async def _gather(self, body: _Body, receive: Receive) -> bytes | None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            if body.gave_way:  # and this part came before it was told
                raise self._gave_way()
            part = message.get("body", b"")
            if len(body.data) + len(part) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body.data + part)
            self._hold(body, part)

    def _hold(self, body: _Body, part: bytes) -> None:
        body.data += part
        self._underway.add(body)
        self._num_bytes += len(part)
        while self._num_bytes > self._max_bytes_underway:
            most = max(self._underway, key=lambda one: len(one.data))
            self._forget(most)
            most.gave_way = True
            most.waiting.reschedule(0)

    def _room(
        self, tenant: Tenant, num_bytes: int
    ) -> contextlib.AbstractContextManager[None]:
        """Holds a body that has come, during a block."""
        if num_bytes <= _SHORT_BYTES:
            return contextlib.nullcontext()
        held, most = self._held[tenant.name], self._max_bytes_underway
        left = most - self._held.total() - num_bytes
        if left < 0 or (
            tenant.among_others and not leaves_room(held, num_bytes, left=left)
        ):
            raise self._too_many("are served", "or few would be left to other keys")
        return self._holding(tenant.name, num_bytes)

    @contextlib.contextmanager
    def _holding(self, tenant: str, num_bytes: int) -> Generator[None]:
        self._held[tenant] += num_bytes
        try:
            yield
        finally:
            self._held[tenant] -= num_bytes
            self._held += Counter()  # forgets who holds nothing

    def _forget(self, body: _Body) -> None:
        if body in self._underway:
            self._underway.remove(body)
            self._num_bytes -= len(body.data)
            body.data = bytearray()

    # What still comes of such bodies is not read: the connection is of no more use.

    def _too_large(self) -> ApiError:
        return ApiError(
            f"the body has more than {self._max_bytes} bytes; send less",
            status=413,
            code="body_too_large",
            headers={"Connection": "close"},
        )

    def _too_late(self) -> ApiError:
        return ApiError(
            f"the body was not complete after {self._seconds:g} seconds",
            status=408,
            headers={"Connection": "close"},
        )

    def _gave_way(self) -> ApiError:
        what = "are on their way", "and this one had most"
        return self._too_many(*what, {"Connection": "close"})

    def _too_many(
        self, which: str, why: str, headers: Mapping[str, str] | None = None
    ) -> ApiError:
        return ApiError(
            f"bodies that {which} have more than {self._max_bytes_underway} bytes "
            f"together, {why}; try later, or send less",
            status=503,
            kind="service_unavailable",
            code="too_many_bodies",
            headers={"Retry-After": str(RETRY_AFTER_S), **(headers or {})},
        )


def _declared_bytes(scope: Scope) -> int:
    """What Content-Length says; 0 where it says nothing that can be read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def _replayed(data: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
