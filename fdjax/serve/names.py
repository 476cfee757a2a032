"""Requests under way by the names that whoever made them gave them."""

import contextlib
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.generate.stopping import FinishReason
from fdjax.serve.stream import Stream


@dataclass(eq=False)
class Named:
    """A request under way.

    Attributes:
        name: no other one has it.
    """

    name: str
    _streams: Sequence[Stream] = ()
    _reason: FinishReason | None = None

    def started(self, streams: Sequence[Stream]) -> None:
        """Takes its streams, which end at once if somebody has ended it meanwhile.

        Their chunks have its name.
        """
        self._streams = streams
        for stream in streams:
            stream.request_id = self.name
        if self._reason is not None:
            self.end(self._reason)

    def end(self, reason: FinishReason) -> None:
        """Ends its streams, now or when there are any."""
        self._reason = reason
        for stream in self._streams:
            stream.end(reason)


class Names:
    """Requests by name; of one loop of asyncio."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def taken(self, name: str | None) -> Generator[Named]:
        """Gives a request its name for as long as it is under way.

        Args:
            name: a number where it is `None`.

        Raises:
            RequestError: another request under way has it.
        """
        if name is None:
            numbers = map(str, self._numbers)
            name = next(number for number in numbers if number not in self._named)
        if name in self._named:
            raise RequestError(
                f"request_id is {shown(name)}, which another request under way has; "
                "use another"
            )
        self._named[name] = Named(name)
        try:
            yield self._named[name]
        finally:
            del self._named[name]

    def end(self, name: str, reason: FinishReason) -> None:
        """Ends the request of that name, if there is one."""
        if name in self._named:
            self._named[name].end(reason)
