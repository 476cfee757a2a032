"""Room in the queue, for requests that are on their way to the engine."""

import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from fdjax.engine.limits import NOTHING, Load
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import NOBODY, Waiting


class Queue(Protocol):
    """Knows what waits for rows, and may."""

    def check_queue(
        self, more: Load, origin: Origin | None = None, claimed: Waiting = NOBODY
    ) -> None:
        """`QueueFullError` where it may not wait now, `RequestError` where never.

        Any thread may ask.

        Args:
            more: what would like to wait.
            origin: on whose behalf.
            claimed: what others have claimed.
        """
        ...


@dataclass(eq=False, frozen=True)
class Claim:
    """Room in the queue for a request that is on its way to the engine.

    Attributes:
        load: how much.
        origin: on whose behalf the request is.
    """

    load: Load
    origin: Origin


class Claims:
    """Who has claimed room, and how much all of them have; any thread may use it.

    So of a thousand requests that come at once, those without room are refused before
    any work is done for them.

    Args:
        queue: that has the room.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._claims: set[Claim] = set()
        self._together = NOTHING
        self._of_tenants: dict[str, Load] = {}

    @contextlib.contextmanager
    def claim(self, load: Load, origin: Origin) -> Generator[Claim]:
        """Keeps room until it is given back, or the block ends.

        Raises:
            QueueFullError: there is none now.
            RequestError: there never is.
        """
        claim, tenant = Claim(load, origin), origin.tenant
        with self._lock:
            claimed = Waiting(self._together, self._of_tenants)
            self._queue.check_queue(load, origin, claimed)
            self._claims.add(claim)
            self._together = self._together.plus(load)
            self._of_tenants[tenant] = claimed.of(tenant).plus(load)
        try:
            yield claim
        finally:
            self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Ends a claim, if it has not ended."""
        with self._lock:
            if claim not in self._claims:
                return
            self._claims.remove(claim)
            self._together = self._together.minus(claim.load)
            tenant = claim.origin.tenant
            left = self._of_tenants.pop(tenant).minus(claim.load)
            if left != NOTHING:
                self._of_tenants[tenant] = left
