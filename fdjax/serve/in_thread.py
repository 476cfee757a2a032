"""`InThread`: an engine in a thread of this process, and what is done beside it."""

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from fdjax.engine.limits import Load
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.generate.any_params import AnyParams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.beam_texts import judging
from fdjax.serve.claims import Claim
from fdjax.serve.engine_thread import EngineThread
from fdjax.serve.grammars import Grammars
from fdjax.serve.preparing import Preparing
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.tickets import Submission, Ticket
from fdjax.serve.tokenizer import Tokenizer
from fdjax.serve.watcher import Watcher


class InThread:
    """A `RunningEngine`; beside its steps, searches and grammars are compiled.

    Args:
        engine: used by nothing else from now on.
        tokenizer: of the model; without one, no beam ends with a text.
        grammars: makes those of structured outputs, which are refused without it.
        watcher: see `EngineThread`.
    """

    def __init__(
        self,
        engine: ServingEngine,
        tokenizer: Tokenizer | None,
        grammars: Grammars | None,
        watcher: Watcher | None = None,
    ) -> None:
        self.thread = EngineThread(engine, watcher)
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._preparing = Preparing(engine)
        if grammars is not None:
            grammars.prepare()

    @property
    def ended(self) -> bool:
        """See `RunningEngine`, as for all others."""
        return self.thread.ended

    @property
    def error(self) -> BaseException | None:
        """See above."""
        return self.thread.error

    @property
    def num_unfinished(self) -> int:
        """See above."""
        return self.thread.num_unfinished

    @property
    def num_made(self) -> int:
        """See above."""
        return self.thread.num_made

    @property
    def step_age_s(self) -> float:
        """See above."""
        return self.thread.step_age_s

    def statistics(self) -> EngineStatistics:
        """See above."""
        return self.thread.statistics()

    async def look(self) -> None:
        """Does nothing: all numbers are always those of the moment."""

    def claim(self, load: Load, origin: Origin) -> AbstractContextManager[Claim]:
        """See above."""
        return self.thread.claim(load, origin)

    async def add(
        self, submissions: Sequence[Submission], tickets: Sequence[Ticket], claim: Claim
    ) -> list[Request]:
        """See above."""
        future = Future[list[Request]]()
        await self.begin_to_add(submissions, tickets, claim, future)
        return await asyncio.wrap_future(future)

    async def begin_to_add(
        self,
        submissions: Sequence[Submission],
        tickets: Sequence[Ticket],
        claim: Claim,
        future: Future[list[Request]],
    ) -> None:
        """The same, but the thread is not waited for: it says to `future` what it does.

        What is refused before that raises here.
        """
        origin = claim.origin
        grammar = await self._grammar(submissions[0].params, origin.owner)
        judged = [self._judged(submission, grammar) for submission in submissions]
        prepared = await self._preparing.submissions(judged, origin)
        self.thread.add(prepared, tickets, claim, future)

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """See above."""
        self.thread.abort(tickets)

    def resume(self, ticket: Ticket) -> None:
        """See above."""
        self.thread.resume(ticket)

    def close(self, *, seconds: float | None = None) -> bool:
        """See above."""
        self._preparing.close()
        return self.thread.close(seconds=seconds)

    async def _grammar(self, params: AnyParams, owner: str) -> Grammar | None:
        """Compiled while all else goes on; without `grammars` the engine refuses it."""
        if isinstance(params, BeamSearchParams):
            params = params.sampling
        if not isinstance(params, SamplingParams) or params.structured_outputs is None:
            return None
        if self._grammars is None:
            return None
        return await self._grammars.compiled(params, owner=owner)

    def _judged(self, submission: Submission, grammar: Grammar | None) -> Submission:
        """With its grammar; of beams, with what knows their stop strings too."""
        params = submission.params
        if isinstance(params, BeamSearchParams):
            grammar = judging(self._tokenizer, submission.prompt, params, grammar)
        return dataclasses.replace(submission, grammar=grammar)
