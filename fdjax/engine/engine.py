"""`Engine`: requests come and go while others run; token ids only."""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from fdjax.engine.beam_executor import BeamLaunch
from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.group import Group
from fdjax.engine.job import Job
from fdjax.engine.limits import NOTHING, Load, QueueLimits
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.pace import Pace
from fdjax.engine.parking import Parking
from fdjax.engine.request import (
    Increment,
    Request,
    check_beams,
    check_pages,
    make_request,
)
from fdjax.engine.results import Launch, ending
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.statistics import EngineStatistics, SoftmaxWatch
from fdjax.engine.warm_up import warm_up
from fdjax.errors import ConfigError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SERVING_PLANS, serving_plan
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.memory.pages import PagePool
from fdjax.memory.plan import MemoryPlan
from fdjax.memory.prefix import PrefixKeys
from fdjax.models.decoder import Decoder

# Launches whose tokens the host has not read: it works one step ahead of the device.
LAUNCHES_AHEAD = 2


class Engine:
    """Continues prompts given as token ids, as many together as rows and pages allow.

    Args:
        model: the decoder, loaded.
        plan: where its memory goes; the KV array is allocated here.
        buckets: the shapes that programs are compiled for.
        steps_per_launch: decode steps of one call, and so tokens of an increment.
        max_launch_s: seconds that a call of more than one step may take.
        seed: of the draws of requests that bring no seed.
        prefix_caching: keys and values of earlier requests are used again where a
            prompt begins with the same tokens.
        limits: what may wait for a row.
    """

    def __init__(
        self,
        model: Decoder,
        plan: MemoryPlan,
        buckets: Buckets,
        *,
        steps_per_launch: int = 8,
        max_launch_s: float = math.inf,
        seed: int = 0,
        prefix_caching: bool = True,
        limits: QueueLimits | None = None,
    ) -> None:
        self.config = model.config
        self.plan = plan
        self.buckets = buckets
        self.scheduler = Scheduler(
            PagePool(plan.layout.num_pages),
            buckets,
            page_size=plan.layout.page_size,
            caching=prefix_caching,
            gathering=plan.page_workspace_bytes > 0,
        )
        self._parking = Parking(self.scheduler)
        pace = Pace(steps_per_launch, max_launch_s)
        self.executor = Executor(model, plan, buckets, pace)
        self._seeds = random.Random(seed)
        self.limits = limits or QueueLimits()
        self._softmax = SoftmaxWatch(
            num_heads=model.config.num_heads, num_layers=model.config.num_layers
        )
        self._unread: deque[Launch | BeamLaunch] = deque()

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams | BeamSearchParams,
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
                KV array could not hold it.
        """
        beams = None
        if isinstance(params, BeamSearchParams):
            beams, params = params, params.sampling
            check_beams(
                beams,
                max_num_seqs=self.buckets.rows[-1],
                batch_invariant=self.config.batch_invariant,
            )
        request = make_request(
            index,
            prompt,
            params,
            vocab_size=self.config.embedding.vocab_size,
            max_model_len=self.plan.max_model_len,
            grammar=grammar,
            beams=beams,
        )
        check_pages(request, self.plan.layout)
        return request

    def check_queue(
        self,
        more: Load,
        origin: Origin | None = None,
        *,
        claimed: Load = NOTHING,
        own: Load = NOTHING,
    ) -> None:
        """Refuses what may not wait beside what waits, all of it.

        Args:
            more: what is to wait.
            origin: of it; nobody's by default.
            claimed: what is on its way, besides.
            own: of that, the part of the same tenant.

        Raises:
            QueueFullError: it may later; `QuotaError` where it is the tenant's limit.
            RequestError: it may never.
        """
        of_tenant = None
        if origin is not None:
            shares = self.scheduler.shares
            shares.check(origin, more.samples, claimed=own.samples)
            if origin.leaves_room:
                of_tenant = shares.of(origin.tenant).waiting.plus(own)
        self.limits.check(self.scheduler.load.plus(claimed), more, of_tenant)

    def add(self, request: Request, origin: Origin | None = None) -> Job:
        """Queues a request that `check_queue` has let wait; `step` does the rest.

        Args:
            request: of `request`.
            origin: of the job; one of its own by default.

        Raises:
            RequestError: it is a beam search wider than its tenant may hold rows.
        """
        origin = origin or Origin()
        self.scheduler.shares.check_rows(origin, request.num_rows)
        job = Job(
            request,
            origin,
            seed=self._seeds.getrandbits(64),
            keys=PrefixKeys(self.plan.layout.page_size, origin.salt),
            tokens=list(request.prompt),
            matcher=request.matcher(),
            group=Group(request.limited_beams) if request.beams else None,
        )
        self.scheduler.add(job)
        return job

    def abort(self, job: Job) -> None:
        """Ends a job; its row and pages are free at once."""
        self._parking.end(job)

    def park(self, job: Job) -> None:
        """Lets a job wait, without a row and pages, until `resume`."""
        self._parking.ask(job)

    def resume(self, job: Job) -> None:
        """Puts a job that was parked back into the queue."""
        self._parking.resume(job)

    @property
    def has_work(self) -> bool:
        """Some job waits or runs; those that are parked do not count."""
        return bool(self.scheduler.running or self.scheduler.num_waiting)

    def wait(self) -> None:
        """Waits until the tokens are there that `step` reads next."""
        if self._unread:
            self._unread[0].wait()

    def step(self) -> list[tuple[Job, Increment]]:
        """Lets jobs in, launches what is next, and reads what was launched before.

        Returns:
            New tokens. None does not mean that there is nothing to do: see `has_work`.
        """
        self._let_in()
        increments = self._settle()
        launched = self._prefill()
        increments += self._make_room()
        launched |= self._decode()
        # One less where a job is held: it misses one step, not two.
        ahead = LAUNCHES_AHEAD - self.scheduler.formed.any_held
        ahead += LAUNCHES_AHEAD * len(self.scheduler.beams)  # a launch each
        while len(self._unread) > (ahead if launched else 0):
            increments += self._read(self._unread.popleft())
            launched = True
        self._softmax.look(self.executor.progress.softmax, at_once=not self.has_work)
        return increments

    def update_weights(self, model: Decoder) -> None:
        """Goes on with other weights of the same model, without the host.

        Nothing is compiled anew where they lie on the same device; else they are moved,
        and programs are traced once more. No prefix that the old ones have made is
        found.

        Args:
            model: what has them.

        Raises:
            ConfigError: jobs wait, run or are parked; or the model is another one.
        """
        if self.has_work or self._parking.num_parked:
            raise ConfigError(
                "weights change between requests, and some are unfinished; let them "
                "end, or abort them"
            )
        self.executor.programs.update(model)
        self.scheduler.pool.forget()

    def reset(self) -> None:
        """Ends all jobs and begins anew, after a step that was not finished."""
        self._parking.clear()
        self.scheduler.clear()
        self._unread.clear()
        self.executor.restart()

    def warm_up(
        self,
        params: Sequence[SamplingParams] | None = None,
        *,
        max_tokens: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Compiles every program that requests with such parameters can need.

        Args:
            params: what requests will ask for, together in any combination; anything
                by default.
            max_tokens: longest sequence to be ready for, prompt and output together;
                the model's limit by default.
            on_progress: called with programs done, and programs in all.

        Returns:
            The number of programs.
        """
        plans, scored = set(SERVING_PLANS), True
        if params is not None:
            plans = {serving_plan([one]) for one in params}
            scored = any(one.prompt_logprobs is not None for one in params)
        longest = min(max_tokens or self.plan.max_model_len, self.plan.max_model_len)
        return warm_up(
            self.executor,
            self.buckets,
            self.plan.layout,
            [plan for plan in SERVING_PLANS if plan in plans],
            longest=longest,
            scored=scored,
            on_progress=on_progress,
        )

    def softmax_statistics(self) -> SoftmaxStatistics:
        """See `Executor.softmax_statistics`."""
        return self.executor.softmax_statistics()

    def statistics(self) -> EngineStatistics:
        """One look at what was counted; any thread may ask, and none is waited for."""
        softmax = self._softmax.read()
        return EngineStatistics.of(self.scheduler, self.plan.layout, softmax)

    def _settle(self) -> list[tuple[Job, Increment]]:
        """Asks matchers what may follow; waits for them if the device has no work."""
        ended = self.scheduler.settle(wait=not self._unread)
        return [(job, ending(job.request, reason)) for job, reason in ended]

    def _let_in(self) -> None:
        source = self.scheduler.compaction()
        if source is not None:
            self.executor.exchange(source)
        admitted = self.scheduler.admit()
        if admitted:
            now_s = time.monotonic()
            for job in admitted:
                job.let_in(now_s)
            running = self.scheduler.running
            rows = (job.request.params for job in running if job.group is None)
            self.executor.use(serving_plan(rows))

    def _prefill(self) -> bool:
        room, called = self.buckets.step_tokens, False
        while chunks := self.scheduler.chunks(room):
            room -= sum(chunk.size for chunk in chunks)
            self._unread += self.executor.prefill(chunks)
            called = True
        return called

    def _decode(self) -> bool:
        jobs = self.scheduler.reserve(self.executor.pace.steps)
        if jobs:
            self._unread.append(self.executor.decode(jobs))
        searches = self.scheduler.beams.reserve(self.scheduler.pool)
        self._unread += map(self.executor.search, searches)
        return bool(jobs or searches)

    def _make_room(self) -> list[tuple[Job, Increment]]:
        """Frees pages for the next launch and rows for others, by putting jobs back.

        What was launched is read first: some jobs may have ended, and of the others all
        tokens must be known.
        """
        increments: list[tuple[Job, Increment]] = []
        scheduler = self.scheduler
        crowded = scheduler.lacking(self.executor.pace.steps) or scheduler.giving_way()
        if crowded or self._parking.is_asked:
            while self._unread:
                increments += self._read(self._unread.popleft())
            increments += self._settle()
        while scheduler.lacking(self.executor.pace.steps):
            scheduler.preempt()
        scheduler.give_way()
        self._parking.park()
        return increments

    def _read(self, launch: Launch | BeamLaunch) -> list[tuple[Job, Increment]]:
        increments = self.executor.read(launch)
        for job, increment in increments:
            if job.group is None:  # whose pages hold the prompt alone
                job.tokens += increment.token_ids
                self.scheduler.remember(job)
            if increment.finish_reason is not None:
                self.scheduler.end(job)
            elif job.matcher is not None:
                job.matcher.advance(increment.token_ids[-1])
        return increments
