"""`Engine`: requests come and go while others run; token ids only."""

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from fdjax import device
from fdjax.engine.borrowing import Borrowing
from fdjax.engine.buckets import Buckets
from fdjax.engine.budget import TokenBudget
from fdjax.engine.executor import Executor
from fdjax.engine.in_turn import wait_for
from fdjax.engine.intake import Intake
from fdjax.engine.lent_pages import borrowing_of
from fdjax.engine.limits import QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.pace import Pace
from fdjax.engine.parking import Parking
from fdjax.engine.pipeline import Pipeline
from fdjax.engine.policy import StepPolicy
from fdjax.engine.request import Increment, Request
from fdjax.engine.room import largest_borrowed
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence, make_group, make_sequence
from fdjax.engine.shared_reads import SharedReads
from fdjax.engine.sleeping import Sleeping
from fdjax.engine.statistics import EngineStatistics, SoftmaxWatch
from fdjax.engine.warm_up import warm_up
from fdjax.generate.beam_fields import MAX_BEAMS
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.memory.pages import PagePool
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.models.weights import check_there


class Engine(Intake):
    """Continues prompts given as token ids, as many together as rows and pages allow.

    Args:
        model: the decoder, loaded; one that is not makes an engine that sleeps.
        plan: where its memory goes; the KV array is allocated here.
        buckets: the shapes that programs are compiled for.
        steps_per_launch: decode steps of one call, and so tokens of an increment.
        max_launch_s: seconds that a call of more than one step may take.
        seed: of the draws of requests that bring no seed.
        prefix_caching: keys and values of earlier requests are used again where a
            prompt begins with the same tokens.
        policy: how prompts and rows that decode share steps. Where decode attention
            does not read pages in place they take turns whatever it says.
        limits: what may wait for a row.
        max_beam_width: beams of a search; no more than there are rows, in any case.
        max_num_beams: of all searches that run; as many as rows by default.
        borrowing: pages that calls overwrite; by default those the plan lends.
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
        policy: StepPolicy | None = None,
        limits: QueueLimits | None = None,
        max_beam_width: int = MAX_BEAMS,
        max_num_beams: int | None = None,
        borrowing: Borrowing | None = None,
    ) -> None:
        self.config = model.config
        self.plan = plan
        self.buckets = buckets
        policy = policy or StepPolicy()
        shares = SharedReads.wanted(policy.shared_reads, model.config, plan)
        borrowing = borrowing or borrowing_of(
            model.config, plan.layout, buckets, shares=shares
        )
        reserve = largest_borrowed(borrowing, buckets)
        self.scheduler = Scheduler(
            PagePool(plan.layout.num_pages, reserve=reserve),
            buckets,
            page_size=plan.layout.page_size,
            caching=prefix_caching,
            gathering=plan.page_workspace_bytes > 0,
            order=policy.prefill_order,
            borrowing=borrowing,
            max_num_beams=max_num_beams,
        )
        self._parking = Parking(self.scheduler)
        is_gpu = device.platform() == "gpu"
        pace = Pace(steps_per_launch, max_launch_s, is_by_count=is_gpu)
        mixed = policy.mixed and not plan.page_workspace_bytes
        budget = TokenBudget(buckets.prefills, policy.max_itl_ms)
        self.executor = Executor(
            model,
            plan,
            buckets,
            pace,
            budget,
            mixed=mixed,
            borrowing=borrowing,
            shared_reads=SharedReads(model.config, plan.layout) if shares else None,
        )
        self.sleeping = Sleeping(self.executor, self.scheduler.pool)
        self._seeds = random.Random(seed)
        self.limits = limits or QueueLimits()
        self.max_beam_width = max_beam_width
        self._softmax = SoftmaxWatch(
            num_heads=model.config.num_heads, num_layers=model.config.num_layers
        )
        self._pipeline = Pipeline(self.scheduler, self.executor, self._parking)

    def add(self, request: Request, origin: Origin | None = None) -> EngineSequence:
        """As `add_samples`, for a request of one sample, or a beam search."""
        (sequence,) = self.add_samples([request], origin)
        return sequence

    def add_samples(
        self, requests: Sequence[Request], origin: Origin | None = None
    ) -> list[EngineSequence]:
        """Queues what `check_queue` has let wait, all or none; `step` does the rest.

        Args:
            requests: of one prompt, which is computed once: the first of `request`, the
                others that one's `sampled`.
            origin: of the sequences; each has its own by default.

        Raises:
            RequestError: it is a beam search wider than its tenant may hold rows.
        """
        first, count = requests[0], len(requests)
        if origin is not None:
            origin.check_rows(first.num_rows)
        layout = self.plan.layout
        group = make_group(first, layout, self.config, count=count)
        sequences = [
            make_sequence(
                request,
                origin or Origin(),
                self._seeds.getrandbits(64),
                layout.page_size,
                group,
            )
            for request in requests
        ]
        for sequence in sequences:
            self.scheduler.add(sequence)
        return sequences

    def abort(self, sequence: EngineSequence) -> None:
        """Ends a sequence; its row and pages are free at once."""
        self._parking.end(sequence)

    def park(self, sequence: EngineSequence) -> None:
        """Lets a sequence wait, without a row and pages, until `resume`."""
        self._parking.ask(sequence)

    def resume(self, sequence: EngineSequence) -> None:
        """Puts a sequence that was parked back into the queue."""
        self._parking.resume(sequence)

    @property
    def has_work(self) -> bool:
        """Some sequence waits or runs; those that are parked do not count."""
        return self.scheduler.has_work

    @property
    def spare_s(self) -> float:
        """Seconds that the next step may wait: the device has work for longer.

        What arrives meanwhile is in it.
        """
        return self._pipeline.spare_s

    def step(self) -> list[tuple[EngineSequence, Increment]]:
        """Lets sequences in, launches what is next, and reads what was launched before.

        Returns:
            New tokens. None does not mean that there is nothing to do: see `has_work`.
        """
        increments = self._pipeline.step()
        self._softmax.look(self.executor.progress.softmax, at_once=not self.has_work)
        return increments

    def wait(self) -> None:
        """Waits until the device has done what was launched, read or not.

        Raises:
            jax.errors.JaxRuntimeError: some of it failed there.
        """
        self._pipeline.wait()
        if not self.sleeping.missing:
            wait_for(self.executor)

    def update_weights(self, model: Decoder) -> None:
        """Goes on with other weights of the same model, without the host.

        Nothing is compiled anew where they lie on the same device; else they are moved,
        and programs are traced once more. No prefix that the old ones have made is
        found.

        Args:
            model: what has them.

        Raises:
            ConfigError: sequences wait, run or are parked; or the model is another one,
                or a weight of it is not there.
            TypeError: it is no `Decoder`.
        """
        check_there(model)
        self._parking.check_idle("weights change")
        self.sleeping.take_weights(model)
        self.scheduler.pool.forget()

    def sleep(self, level: int = 1) -> None:
        """Gives back the KV array and the weights: see `Sleeping`.

        Raises:
            ConfigError: sequences wait, run or are parked; or there is no such level.
        """
        self._parking.check_idle("an engine sleeps")
        self.sleeping.sleep(level)

    def reset(self) -> None:
        """Ends all sequences and begins anew, after a step that was not finished."""
        self._parking.clear()
        self.scheduler.clear()
        self._pipeline.clear()
        self.executor.restart()

    def warm_up(
        self,
        params: Sequence[SamplingParams | PoolingParams] | None = None,
        *,
        max_tokens: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        weights: Future[Decoder] | None = None,
    ) -> int:
        """Compiles every program that requests with such parameters can need.

        Args:
            params: what requests will ask for, together in any combination; anything
                by default.
            max_tokens: longest sequence to be ready for, prompt and output together;
                the model's limit by default.
            on_progress: called with programs done, and programs in all.
            weights: what an engine that sleeps is to wake with, on their way in another
                thread; programs are traced and compiled before they are there.

        Returns:
            The number of programs.

        Raises:
            ConfigError: sequences are unfinished whose pages these calls would borrow.
            Exception: the weights could not be loaded.
        """
        if weights is None:
            self.sleeping.check()
        if self.scheduler.room.borrows:  # and overwritten
            self._parking.check_idle("programs are compiled")
            self.scheduler.pool.forget()
        longest = min(max_tokens or self.plan.max_model_len, self.plan.max_model_len)
        return warm_up(
            self.executor,
            self.buckets,
            self.plan.layout,
            params,
            longest=longest,
            moves=self.scheduler.room.borrows,
            on_progress=on_progress,
            awake=partial(self.sleeping.take, weights),
        )

    def softmax_statistics(self) -> SoftmaxStatistics:
        """How often decoding left the bounds of the unified maximum, since the start.

        Only this call reads it, and waits; zeros with the synchronised softmax.
        """
        counts, config = self.executor.progress.softmax, self.config
        if counts is None:
            return SoftmaxStatistics(0, (0,) * config.num_layers)
        return counts.read(num_heads=config.num_heads)

    def statistics(self) -> EngineStatistics:
        """One look at what was counted; any thread may ask, and none is waited for."""
        softmax = self._softmax.read()
        return EngineStatistics.of(self.scheduler, self.plan.layout, softmax)
