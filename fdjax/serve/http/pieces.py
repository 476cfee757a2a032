"""Pieces of an answer, written to their connection past all that looks at its head."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.types import Scope, Send

# Of ASGI's scope: extensions may have any name.
_EXTENSION = "fdjax.pieces"

type Write = Callable[[bytes], Awaitable[None]]


class Cycle(Protocol):
    """A request and its answer on a connection: uvicorn's."""

    @property
    def disconnected(self) -> bool:
        """The client has gone."""
        ...

    @property
    def flow(self) -> Any:
        """Knows whether writing has to wait."""
        ...

    @property
    def transport(self) -> Any:
        """Of the connection."""
        ...


def offer(scope: Scope, cycle: Cycle) -> None:
    """Lets the answer to a request be written in pieces.

    HTTP/1.0 has no chunks, and an answer to `HEAD` no body: those go the usual way.
    """
    if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
        extensions = {**scope.get("extensions", {}), _EXTENSION: _writer(cycle)}
        scope["extensions"] = extensions


def writer(scope: Scope, send: Send) -> Write:
    """Writes a piece of an answer whose head is sent, and says nothing of a length.

    Each token of each stream is a piece. Whoever stands between an endpoint and its
    connection cares for heads and ends alone, and h11 has its checks for each: with
    them a piece costs twice what it does without.

    Args:
        scope: of the request.
        send: the usual way, which is taken where there is no other.
    """

    async def sent(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    return scope.get("extensions", {}).get(_EXTENSION, sent)


def _writer(cycle: Cycle) -> Write:
    async def write(piece: bytes) -> None:
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        # A chunk without a byte would end the answer.
        if piece and not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    return write
