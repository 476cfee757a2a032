"""`Stream`: the chunks of one sample, for a task of asyncio."""

import asyncio
from collections.abc import Callable

from fdjax.engine.request import Request
from fdjax.engine.results import ending
from fdjax.errors import EngineDeadError
from fdjax.generate.stopping import FinishReason
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.outputs import Chunk
from fdjax.serve.running_engine import RunningEngine
from fdjax.serve.tickets import Ticket


class Stream:
    """The chunks of one request, as they come: an asynchronous iterator.

    Attributes:
        request: as the engine checked it.
    """

    def __init__(
        self,
        running: RunningEngine,
        ticket: Ticket,
        request: Request,
        to: Detokenizer,
        *,
        deadline_s: float | None = None,
    ) -> None:
        self._running = running
        self._ticket = ticket
        self._detokenizer = to
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        if deadline_s is not None:
            timed_out = FinishReason.TIMED_OUT
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(deadline_s, self.end, timed_out)
        self.request = request

    @property
    def request_id(self) -> str | None:
        """Of the request, for the chunks."""
        return self._detokenizer.request_id

    @request_id.setter
    def request_id(self, name: str) -> None:
        self._detokenizer.request_id = name

    @property
    def admitted_s(self) -> float | None:
        """When it was let in, by `time.monotonic`; known with the first chunk."""
        return self._ticket.admitted_s

    @property
    def num_cached(self) -> int:
        """Tokens of its prompt that were found in the cache, as far as it is known."""
        return self._ticket.num_cached or 0

    @property
    def num_unread(self) -> int:
        """Tokens that the engine has made of it and that nobody has read."""
        return self._ticket.num_unread

    def tell_tried(self, tell: Callable[[int], object]) -> None:
        """Has the tokens of a search's beams told at once when the engine has them.

        Nobody need read the stream for that. Of a search's streams the first one tells.

        Args:
            tell: told how many there are now, and then of more as they come.
        """
        tell(self._ticket.num_tried)
        self._ticket.on_tried = tell

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Chunk:
        if self._closed:
            raise StopAsyncIteration
        item = await self._ticket.inbox.get()
        if isinstance(item, EngineDeadError):
            self.close()
            raise item
        if self._ticket.take(item):
            self._running.resume(self._ticket)
        chunk = self._detokenizer.chunk(item)
        if self._detokenizer.ended:
            self.close()
        return chunk

    def end(self, reason: FinishReason) -> None:
        """Ends the request; after what has come, a last chunk says for what reason."""
        if not self._closed:
            self._running.abort([self._ticket])
            self._ticket.inbox.put(ending(self.request, reason))

    def close(self) -> None:
        """Aborts the request, if it has not ended."""
        if not self._closed:
            self._closed = True
            self._running.abort([self._ticket])
            if self._timer is not None:
                self._timer.cancel()
