"""`Intake`: what any thread may ask of an engine."""

import dataclasses
from collections.abc import Sequence

from fdjax.engine.beam_preparation import BeamPreparation
from fdjax.engine.buckets import Buckets
from fdjax.engine.checked_request import (
    check_beams,
    check_pages,
    check_pooling,
    make_request,
)
from fdjax.engine.executor import Executor
from fdjax.engine.limits import Load, QueueLimits
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import NOBODY, Waiting, check_queue
from fdjax.engine.request import Request
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sleeping import Sleeping
from fdjax.generate.any_params import AnyParams, by_kind
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig


class Intake:
    """What any thread may ask of an engine before it has a sequence.

    Attributes:
        config: the model.
        plan: where memory goes.
        buckets: shapes.
        scheduler: of the engine, as for the next two.
        executor: see above.
        sleeping: see above.
        limits: what may wait for a row.
        max_beam_width: beams of a search.
    """

    config: ModelConfig
    plan: MemoryPlan
    buckets: Buckets
    scheduler: Scheduler
    executor: Executor
    sleeping: Sleeping
    limits: QueueLimits
    max_beam_width: int

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: AnyParams,
        grammar: Grammar | None = None,
    ) -> Request:
        """A checked request.

        Args:
            index: place in the order of the caller.
            prompt: token ids.
            params: how to continue it.
            grammar: what the output may be. The request then takes part in one step at
                a time, and in every second one of those that others take.

        Raises:
            RequestError: the prompt or the parameters cannot be served, or the whole
                KV array could not hold it beside what a step of it borrows.
        """
        self.sleeping.check()
        beams, pooling, params = None, None, by_kind(params)
        invariant = self.config.batch_invariant
        if isinstance(params, PoolingParams):
            pooling, params = params, params.sampling
            size = self.config.hidden_size
            check_pooling(pooling, hidden_size=size, batch_invariant=invariant)
        if isinstance(params, BeamSearchParams):
            beams, params = params, params.sampling
            rows = self.buckets.rows[-1]
            check_beams(
                beams,
                max_beam_width=self.max_beam_width,
                max_num_seqs=rows,
                max_num_beams=self.scheduler.beams.most_rows,
                batch_invariant=invariant,
            )
        request = make_request(
            index,
            prompt,
            params,
            vocab_size=self.config.embedding.vocab_size,
            max_model_len=self.plan.max_model_len,
            grammar=grammar,
            beams=beams,
            pooling=pooling,
        )
        borrowed = self.scheduler.room.least(request)
        check_pages(request, self.plan.layout, borrowed=borrowed)
        return request

    def prepare(self, request: Request, *, only_kept: bool) -> Request | None:
        """The same request, for which no step compiles anything but prompts.

        Without this, beam searches are compiled when they begin. Any thread may ask.

        Args:
            request: of `request`.
            only_kept: nothing is compiled; `None` where something would have to be.
        """
        if request.beams is None:
            return request
        programs = self._preparation.prepared(
            request, self.executor.kv, only_kept=only_kept
        )
        if programs is None:
            return None
        return dataclasses.replace(request, programs=programs)

    def prepare_batches(self, request: Request) -> bool:
        """Compiles steps that a search takes with those that are like it now.

        Without this each takes its steps alone.

        Args:
            request: what `prepare` has given, at any time after.

        Returns:
            Whether something was compiled; then there may be more to compile.
        """
        for count in self._preparation.batch_sizes(request):
            if request.beams is not None:
                # Found now, and not by the first step that borrows them.
                self.scheduler.room.of_search(request.beams, count=count)
            if self._preparation.prepare_batch(request, self.executor.kv, count):
                return True
        return False

    def check_queue(
        self, more: Load, origin: Origin | None = None, claimed: Waiting = NOBODY
    ) -> None:
        """Refuses what may not wait beside what waits; see `queue_check`."""
        check_queue(self.limits, more, origin, waiting=self.waiting(), claimed=claimed)

    def waiting(self) -> Waiting:
        """What waits now; any thread may ask."""
        return Waiting(self.scheduler.waiting.load, self.scheduler.shares.waiting())

    @property
    def _preparation(self) -> BeamPreparation:
        return self.executor.beams.preparation
