"""`ServingEngine`: what serving needs of an engine."""

from collections.abc import Sequence
from typing import Any, Protocol

from fdjax.engine.limits import NOTHING, Load
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.request import Increment, Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams


class ServingEngine(Protocol):
    """What serving needs of an engine.

    A job is a hashable handle; `admitted_s` says when it was let in, as that of `Job`.
    """

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams | BeamSearchParams,
        grammar: Grammar | None = None,
    ) -> Request:
        """A checked request; `RequestError` where it cannot be served."""
        ...

    def check_queue(
        self,
        more: Load,
        origin: Origin | None = None,
        *,
        claimed: Load = NOTHING,
        own: Load = NOTHING,
    ) -> None:
        """`QueueFullError` where it may not wait now, `RequestError` where never.

        Any thread may ask, as for `statistics`.
        """
        ...

    def add(self, request: Request, origin: Origin | None = None) -> Any:
        """Queues a request, gives its job."""
        ...

    def abort(self, job: Any) -> None:
        """Ends a job, if it has not ended."""
        ...

    def park(self, job: Any) -> None:
        """Makes no more of a job, if it has not ended, until `resume`."""
        ...

    def resume(self, job: Any) -> None:
        """Goes on with a job, if it was parked."""
        ...

    def step(self) -> list[tuple[Any, Increment]]:
        """Does some work; gives what came of it, which may be nothing."""
        ...

    @property
    def has_work(self) -> bool:
        """Some job has not ended."""
        ...

    def statistics(self) -> EngineStatistics:
        """One look at what was counted; any thread may ask."""
        ...
