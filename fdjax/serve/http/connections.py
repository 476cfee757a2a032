"""A connection of HTTP: heads, silence and clients that do not read have limits."""

import asyncio
import logging
import sys
from typing import Any, cast, override

import h11
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from fdjax.serve.http import heads, pieces
from fdjax.serve.http.addresses import address_of
from fdjax.serve.http.crowd import Crowd, Reason
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.left_open import LeftOpen
from fdjax.serve.http.turnstile import Turnstile
from fdjax.serve.http.underway import is_stream

# Taken in at once. Each chunk of a body costs 20 us, however small: a body may have so
# many ends of lines (two a chunk), and one more for so many of its bytes.
_SLICE_BYTES = 4 * 2**10
_LINE_ENDS = 2048
_BYTES_PER_LINE_END = 64
_PROBE_S = 0.1
# Of uvicorn. Whoever sends what is no HTTP is answered, and could fill the log.
_UVICORN = logging.getLogger("uvicorn.error.connections")
_UVICORN.setLevel(logging.ERROR)
# Of a stream of events; whoever reads it skips it.
_COMMENT = b":\n\n"

_LOGGER = logging.getLogger(__name__)


class CrowdConfig(uvicorn.Config):
    """A configuration whose connections are those of a crowd."""

    crowd: Crowd
    turnstile: Turnstile


class Connection(H11Protocol):
    """One connection, which its crowd knows.

    * A head must be there in time, also that of a later request; what a client goes on
      to send after an answer is one that never ends.
    * What was written must be taken in time: no more is written before, and the
      buffer of the transport holds one piece of an answer.
    * A head that is too long is answered, however it comes.
    * A client that is still sending when it is answered gets its answer.
    * A client that has ended its side still gets its answer. One that has gone looks
      the same until something is sent to it: so it is sent what means nothing.

    Attributes:
        address: see `Member`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _UVICORN
        self._crowd = cast(CrowdConfig, config).crowd
        self._turnstile = cast(CrowdConfig, config).turnstile
        self._application = self.app
        self.app = self._serve
        self.address = ""
        self._num_served = 0
        self._last_words = False
        self._head_missed = False
        self._streams = False
        self._counted: Any = None
        self._num_line_ends = self._num_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        kept = LeftOpen(transport, self._close)
        super().connection_made(cast(asyncio.Transport, kept))
        # Paused as long as the kernel has not taken all: that is what is timed.
        transport.set_write_buffer_limits(high=0)
        self.address = address_of(self.client[0] if self.client else "")
        self._await_head()
        self._crowd.enter(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._head_has_come()
        super().connection_lost(exc)  # resumes writing

    @override
    def data_received(self, data: bytes) -> None:
        while data and not self._last_words and not self.transport.is_closing():
            in_body = self.conn.their_state is h11.SEND_BODY
            size = len(data) if in_body and not self._is_chunked else _SLICE_BYTES
            part, data = data[:size], data[size:]
            super().data_received(part)
            self._count_chunks(part)
        if not self._num_served:
            self._await_head()

    @override
    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  (asyncio's own type)
        """Whether to go on writing: there is an answer to come, and a way to probe."""
        if not self._num_served or self._last_words:
            return False
        # The latter after `Connection: close`.
        complete = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        if not complete or self.scope["http_version"] != "1.1":
            return False
        self.cycle.keep_alive = False
        self._probe(_PROBE_S)
        return True

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self._crowd.limits.write_seconds
        self._write_timer = self.loop.call_later(
            seconds, self._crowd.drop, self, "write"
        )

    @override
    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    @override
    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP: called where an error of h11's is handled."""
        error = sys.exception()
        status = getattr(error, "error_status_hint", 400)
        if status == 431:
            self._say(heads.too_long())
        else:
            text = f"the request is not HTTP/1.1: {error or msg}"
            self._say(ApiError(text, status=status))

    def drop(self, reason: Reason) -> None:
        """See `Member`."""
        _LOGGER.debug("a connection of %s is dropped: %s", self.address, reason)
        self.transport.abort()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, around which the crowd counts."""
        self._head_has_come()
        self._num_served += 1
        turn = await self._turnstile.enter(self.address)
        pieces.offer(scope, self.cycle)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._streams = is_stream(message)
            await send(message)

        try:
            if self.cycle.disconnected:  # meanwhile
                return
            heads.check(scope)
            self._crowd.begin(self, scope["path"])
            await self._application(cast(Any, scope), receive, cast(Any, sending))
        except ApiError as error:
            await error.send(scope, receive, send)
        finally:
            self._turnstile.leave(turn)
            self._num_served -= 1
            self._crowd.end(self)
            if not self._num_served and self.conn.trailing_data[0]:
                self._await_head()  # the next one has begun

    def _probe(self, wait_s: float) -> None:
        """Sends something, less and less often: the second time, it fails.

        The peer answers what comes after its end with a reset.
        """
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        event: h11.InformationalResponse | h11.Data | None = None
        if not self.cycle.response_started:
            event = h11.InformationalResponse(
                status_code=100, headers=[], reason="Continue"
            )
        elif self._streams:
            event = h11.Data(data=_COMMENT)
        if event is not None and not self.flow.write_paused:
            self.transport.write(self.conn.send(event) or b"")
        self.loop.call_later(wait_s, self._probe, 2 * wait_s)

    def _close(self) -> None:
        """Called when nothing more is to be said."""
        if self.conn.their_state is h11.SEND_BODY and not self._last_words:
            self._linger()
        else:
            cast(LeftOpen, self.transport).really_close()

    def _linger(self) -> None:
        """Takes what still comes: closing on it would take the answer back."""
        self._last_words = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self._await_head()

    @property
    def _is_chunked(self) -> bool:
        return any(name == b"transfer-encoding" for name, _ in self.headers)

    def _count_chunks(self, part: bytes) -> None:
        """Refuses a body of very many chunks, which would hold up all others."""
        if self.conn.their_state is not h11.SEND_BODY:
            return
        if self.scope is not self._counted:
            self._counted, self._num_line_ends, self._num_bytes = self.scope, 0, 0
        if not self._is_chunked:
            return
        self._num_line_ends += part.count(b"\r\n")
        self._num_bytes += len(part)
        allowed = _LINE_ENDS + self._num_bytes // _BYTES_PER_LINE_END
        if self._num_line_ends > allowed:
            text = (
                f"the body has more than {allowed // 2} chunks in {self._num_bytes} "
                "bytes; send larger ones"
            )
            if self.cycle.response_complete:  # refused already, for want of a key
                self.loop.call_soon(self._crowd.drop, self, "head")
                self._last_words = True
            else:
                self._say(ApiError(text, code="chunks_too_small"))

    def _await_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            seconds = self._crowd.limits.head_seconds
            self._head_timer = self.loop.call_later(seconds, self._head_is_late)

    def _head_has_come(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        begun = self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]
        if begun and not self._last_words:
            seconds = self._crowd.limits.head_seconds
            text = f"the request's head was not there after {seconds:g} seconds"
            # Counted now: who reads the answer closes, and is not dropped any more.
            self._head_missed = True
            self._crowd.note("head")
            self._say(ApiError(text, status=408))
        elif self._head_missed:
            self.transport.abort()
        else:
            self._crowd.drop(self, "head")

    def _say(self, error: ApiError) -> None:
        """Answers without a request, and ends the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = bytes(error.response.body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        reason = STATUS_PHRASES[error.status]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._linger()
        # Whoever reads the wrong body, or will, has no client any more.
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
