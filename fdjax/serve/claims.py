"""Room in the queue, for requests that are on their way to the engine."""

import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.errors import QueueFullError, RequestError
from fdjax.serve.serving_engine import ServingEngine


@dataclass(eq=False, frozen=True)
class Claim:
    """Room in the queue for a request that is on its way to the engine.

    Attributes:
        load: how much.
    """

    load: Load


class Claims:
    """Who has claimed room, and how much all of them have; any thread may use it.

    So of a thousand requests that come at once, those without room are refused before
    any work is done for them.

    Args:
        engine: whose queue it is.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._claims: set[Claim] = set()
        self._together = Load(0, 0, 0)

    @contextlib.contextmanager
    def claim(self, load: Load, origin: Origin) -> Generator[Claim]:
        """Keeps room until it is given back, or the block ends.

        Raises:
            QueueFullError: there is none now.
            RequestError: there never is.
        """
        claim = Claim(load)
        self._engine.check_queue(load, origin)
        with self._lock:
            together = self._together.plus(load)
            if self._claims:
                self._check_together(together)
            self._claims.add(claim)
            self._together = together
        try:
            yield claim
        finally:
            self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Ends a claim, if it has not ended."""
        with self._lock:
            if claim in self._claims:
                self._claims.remove(claim)
                self._together = self._together.minus(claim.load)

    def _check_together(self, load: Load) -> None:
        """Whether all that has claims could wait; no matter whose they are."""
        try:
            self._engine.check_queue(load)
        except (QueueFullError, RequestError) as error:  # none of them is at fault
            raise QueueFullError(
                "as many requests come at this moment as may wait; try later"
            ) from error
