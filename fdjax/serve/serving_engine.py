"""`ServingEngine`: what serving needs of an engine."""

from collections.abc import Sequence
from typing import Any, Protocol

from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.request import Increment, Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.generate.any_params import AnyParams
from fdjax.serve.claims import Queue


class ServingEngine(Queue, Protocol):
    """What serving needs of an engine.

    A sequence is a hashable handle; `admitted_s` says when it was let in and
    `num_cached` what of its prompt was found then, as those of `EngineSequence`.
    """

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: AnyParams,
        grammar: Grammar | None = None,
    ) -> Request:
        """A checked request; `RequestError` where it cannot be served.

        Any thread may ask.
        """
        ...

    def prepare(self, request: Request, *, only_kept: bool) -> Request | None:
        """The same, whose steps compile nothing; any thread may ask.

        `None` where something would have to be compiled, but only what is kept may be
        used.
        """
        ...

    def prepare_batches(self, request: Request) -> bool:
        """Compiles some of what lets it take steps with others; any thread may ask.

        It is what `prepare` has given. True if there may be more.
        """
        ...

    def add_samples(
        self, requests: Sequence[Request], origin: Origin | None = None
    ) -> Sequence[Any]:
        """Queues the samples of one prompt, all or none; gives their sequences."""
        ...

    def abort(self, sequence: Any) -> None:
        """Ends a sequence, if it has not ended."""
        ...

    def park(self, sequence: Any) -> None:
        """Makes no more of a sequence, if it has not ended, until `resume`."""
        ...

    def resume(self, sequence: Any) -> None:
        """Goes on with a sequence, if it was parked."""
        ...

    def step(self) -> list[tuple[Any, Increment]]:
        """Does some work; gives what came of it, which may be nothing."""
        ...

    def wait(self) -> None:
        """Waits until the device has done what steps have launched."""
        ...

    @property
    def spare_s(self) -> float:
        """Seconds that the next step may wait for what arrives."""
        ...

    @property
    def has_work(self) -> bool:
        """Some sequence has not ended."""
        ...

    def statistics(self) -> EngineStatistics:
        """One look at what was counted; any thread may ask."""
        ...
