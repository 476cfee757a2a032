"""All connections of a server: how many there may be, and which one gives way."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fdjax.serve.http.errors import RETRY_AFTER_S, ApiError
from fdjax.serve.http.keys import WATCHED_PATHS

# Connections beyond the limit, for what watches the server: see `Crowd`.
RESERVE = 16

type Reason = Literal["head", "write", "crowded"]

_LOGGER = logging.getLogger(__name__)
_WARNS_EVERY_S = 60.0


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long each may keep still.

    Attributes:
        total: that are served at once; watched paths are answered beyond it.
        by_address: the same, of one address (IPv6: of one /64); `None`: any number.
        head_seconds: until a request's head is there.
        idle_seconds: between requests.
        write_seconds: until a client takes what was sent to it.
    """

    total: int = 1024
    by_address: int | None = None
    head_seconds: float = 10.0
    idle_seconds: int = 5
    write_seconds: float = 30.0


class Member(Protocol):
    """A connection, as its crowd knows it.

    Attributes:
        address: of its client; see `addresses.address_of`.
    """

    address: str

    def drop(self, reason: Reason) -> None:
        """Closes it without a word."""
        ...


class Crowd:
    """Who is connected: some are served, the others wait for a request.

    More than `total` are never served at once, but for the watched paths. Waiting costs
    a client nothing, so who waits has no right to stay: where there are more than
    `total` and the reserve, the one that has waited longest gives way to the newcomer,
    first of those that have never asked for anything, as far as these have more places
    than the reserve. So silent connections keep nobody out, and however many are
    served, somebody who says at once that he wants a watched path is heard. An address
    that has a limit of its own is a crowd of the same kind, with a reserve of one.

    Args:
        limits: of connections.
        on_drop: told why a connection was closed by the server.
    """

    def __init__(
        self, limits: ConnectionLimits, on_drop: Callable[[Reason], None]
    ) -> None:
        self.limits = limits
        self._on_drop = on_drop
        # In the order in which they began to wait; newcomers, and those served before.
        self._new: dict[Member, None] = {}
        self._idle: dict[Member, None] = {}
        self._served: dict[Member, int] = {}
        self._here: Counter[str] = Counter()
        self._served_here: Counter[str] = Counter()
        self._warned_s = -_WARNS_EVERY_S

    def __len__(self) -> int:
        return len(self._new) + len(self._idle) + len(self._served)

    def enter(self, member: Member) -> None:
        """Takes a newcomer, and makes room for it."""
        self._new[member] = None
        self._here[member.address] += 1
        by_address, address = self.limits.by_address, member.address
        if by_address is not None and self._here[address] > by_address + 1:
            self.drop(self._longest_waiting(1, address), "crowded")
        elif len(self) > self.limits.total + RESERVE:
            self.drop(self._longest_waiting(RESERVE), "crowded")

    def leave(self, member: Member) -> None:
        """Forgets a connection, the first time it is told."""
        if member in self._served:
            del self._served[member]
            _subtract(self._served_here, member.address)
        elif not self._wakes(member):
            return
        _subtract(self._here, member.address)

    def drop(self, member: Member, reason: Reason) -> None:
        """Closes a connection, and forgets it."""
        self.leave(member)
        self._on_drop(reason)
        member.drop(reason)

    def note(self, reason: Reason) -> None:
        """Counts a connection that is told why it ends, and ends by that."""
        self._on_drop(reason)

    def begin(self, member: Member, path: str) -> None:
        """A request of a connection has come.

        Raises:
            ApiError: 503 or 429: it is too many.
        """
        if self._wakes(member):
            self._served_here[member.address] += 1
        self._served[member] = self._served.get(member, 0) + 1
        if path in WATCHED_PATHS:
            return
        limits, served = self.limits, len(self._served)
        if served > limits.total:
            raise self._too_many(f"{served} connections are served", limits.total, 503)
        served = self._served_here[member.address]
        if limits.by_address is not None and served > limits.by_address:
            what = f"{served} connections of your address are served"
            raise self._too_many(what, limits.by_address, 429)

    def end(self, member: Member) -> None:
        """A request of a connection has been answered."""
        if member not in self._served:  # it was closed meanwhile
            return
        self._served[member] -= 1
        if not self._served[member]:
            del self._served[member]
            _subtract(self._served_here, member.address)
            self._idle[member] = None

    def _wakes(self, member: Member) -> bool:
        """Takes one from those that wait, if it is one of them."""
        for waiting in (self._new, self._idle):
            if member in waiting:
                del waiting[member]
                return True
        return False

    def _longest_waiting(self, reserve: int, address: str | None = None) -> Member:
        """Who gives way: of all, or of an address. The newcomer is one of them."""
        new, idle = (
            [one for one in waiting if address in (None, one.address)]
            for waiting in (self._new, self._idle)
        )
        return idle[0] if idle and len(new) <= reserve else new[0]

    def _too_many(self, what: str, limit: int, status: int) -> ApiError:
        self._on_drop("crowded")
        message = f"{what} at once, and {limit} may be"
        if time.monotonic() - self._warned_s > _WARNS_EVERY_S:
            self._warned_s = time.monotonic()
            _LOGGER.warning("a request was refused: %s", message)
        return ApiError(
            f"{message}; try later, over fewer connections",
            status=status,
            kind="service_unavailable" if status == 503 else "rate_limit_error",
            code="too_many_connections",
            headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
        )


def _subtract(counts: Counter[str], name: str) -> None:
    """One less; nothing is kept of a name without any."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
