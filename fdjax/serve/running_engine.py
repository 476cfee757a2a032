"""`RunningEngine`: what serving on asyncio needs of an engine, wherever it runs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.serve.claims import Claim
from fdjax.serve.tickets import Submission, Ticket


class RunningEngine(Protocol):
    """An engine that steps by itself: in a thread (`InThread`), or in a process.

    Increments come to the inboxes of the tickets. Where it ends, these get an
    `EngineDeadError`, which whoever asks for anything afterwards gets, too.
    """

    @property
    def ended(self) -> bool:
        """It takes no more requests."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What ended it; `None` while it lives or if it was shut down."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        ...

    @property
    def num_made(self) -> int:
        """Tokens that it has made, read or not."""
        ...

    @property
    def step_age_s(self) -> float:
        """Seconds of the step under way; see `StepClock`."""
        ...

    def statistics(self) -> EngineStatistics:
        """What is known of what it has counted; nothing is waited for."""
        ...

    async def look(self) -> None:
        """Has `statistics`, and the numbers above, be those of a later moment."""
        ...

    def claim(self, load: Load, origin: Origin) -> AbstractContextManager[Claim]:
        """Keeps room in the queue until `add`; see `Claims.claim`."""
        ...

    async def add(
        self, submissions: Sequence[Submission], tickets: Sequence[Ticket], claim: Claim
    ) -> list[Request]:
        """Lets the engine take all of some submissions, or none.

        Args:
            submissions: the prompts of one request, which share their parameters. Its
                grammar, and what a beam search alone needs, are compiled first, beside
                all else.
            tickets: one for each sample of the first prompt, then of the next; of a
                beam search one, which has those of its other outputs.
            claim: their room, which they have from now on by themselves, and on
                whose behalf they are.

        Returns:
            The checked request of each ticket. Whoever gives up waiting for them, or
            gets an error, calls `abort`.

        Raises:
            RequestError: one of them cannot be served.
            QueueFullError: as many requests wait as may.
            EngineDeadError: the engine has ended.
        """
        ...

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Ends calls, if they have not ended; what was added before is found."""
        ...

    def resume(self, ticket: Ticket) -> None:
        """Goes on with a call that was parked, as all of it was read."""
        ...

    def close(self, *, seconds: float | None = None) -> bool:
        """Ends all calls and the engine, once the step under way is done.

        Args:
            seconds: to wait for that; `None` waits for ever.

        Returns:
            Whether it has ended.
        """
        ...
