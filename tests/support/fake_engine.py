"""An engine without a model: it says what it was told to, and fails when told to."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fdjax.engine.limits import NOTHING, Load
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.request import Increment, Logprob, Request, make_request
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import QueueFullError, RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.generate.stopping import FinishReason

VOCAB_SIZE = 4096
MAX_MODEL_LEN = 64


@dataclass(eq=False)
class FakeJob:
    """A request on its way."""

    request: Request
    origin: Origin
    num_made: int = 0
    admitted_s: float | None = None


class FakeEngine:
    """Answers every request with the same tokens, one a step.

    Args:
        answer: the tokens; the request ends with the last of them, or at its limit.
        per_step: how many of them come in a step.
        step_s: seconds of a step.
        fails_at: the step that raises, from 1.
        max_jobs: more are refused.
        hung: no step ends before it is set.
        crowd: no token comes before so many requests have been added.

    Attributes:
        jobs: that have not ended.
        parked: jobs that make no tokens.
        aborted: requests ended by `abort`.
        threads: that have called anything.
        added: all jobs there ever were.
    """

    def __init__(
        self,
        answer: Sequence[int] = (),
        *,
        per_step: int = 1,
        step_s: float = 0.0,
        fails_at: int | None = None,
        max_jobs: int | None = None,
        hung: threading.Event | None = None,
        crowd: int = 0,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.answer = list(answer)
        self.per_step = per_step
        self.step_s = step_s
        self.fails_at = fails_at
        self.max_jobs = max_jobs
        self.hung = hung
        self.crowd = crowd
        self.max_model_len = max_model_len
        self.num_steps = 0
        self.jobs: list[FakeJob] = []
        self.parked: set[FakeJob] = set()
        self.added: list[FakeJob] = []
        self.aborted: list[Request] = []
        self.threads: set[str] = set()

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams | BeamSearchParams,
        grammar: Grammar | None = None,
    ) -> Request:
        self._enter()
        if not isinstance(params, SamplingParams):
            raise RequestError("beam_width is for engines that can search")
        return make_request(
            index,
            prompt,
            params,
            vocab_size=VOCAB_SIZE,
            max_model_len=self.max_model_len,
            grammar=grammar,
        )

    def check_queue(
        self,
        more: Load,
        origin: Origin | None = None,
        *,
        claimed: Load = NOTHING,
        own: Load = NOTHING,
    ) -> None:
        """Any thread may ask."""
        now = len(self.jobs) + claimed.samples
        if self.max_jobs is not None and now + more.samples > self.max_jobs:
            raise QueueFullError(f"{len(self.jobs)} samples wait; try later")

    def add(self, request: Request, origin: Origin | None = None) -> FakeJob:
        self._enter()
        job = FakeJob(request, origin or Origin())
        self.jobs.append(job)
        self.added.append(job)
        return job

    def park(self, job: FakeJob) -> None:
        self._enter()
        self.parked.add(job)

    def resume(self, job: FakeJob) -> None:
        self._enter()
        self.parked.discard(job)

    def abort(self, job: FakeJob) -> None:
        self._enter()
        if job in self.jobs:
            self.jobs.remove(job)
            self.aborted.append(job.request)

    @property
    def has_work(self) -> bool:
        self._enter()
        return any(job not in self.parked for job in self.jobs)

    def statistics(self) -> EngineStatistics:
        """Made up, each number another one; any thread may ask."""
        return EngineStatistics(
            num_running=len(self.jobs),
            num_waiting=3,
            page_size=16,
            num_pages=80,
            num_held_pages=20,
            num_preemptions=5,
            num_queried_tokens=70,
            num_cached_tokens=30,
            softmax=SoftmaxStatistics(query_heads=1000, recomputed=(2, 7)),
            tenants={"alice": (6, 4)},
        )

    def step(self) -> list[tuple[FakeJob, Increment]]:
        self._enter()
        self.num_steps += 1
        time.sleep(self.step_s)
        if self.hung is not None:
            self.hung.wait()
        if self.num_steps == self.fails_at:
            raise FloatingPointError("the step was told to fail")
        if len(self.added) < self.crowd:
            return []
        going = [job for job in self.jobs if job not in self.parked]
        made = [(job, self._advance(job)) for job in going]
        ended = {job for job, increment in made if increment.finish_reason is not None}
        self.jobs = [job for job in self.jobs if job not in ended]
        return made

    def _advance(self, job: FakeJob) -> Increment:
        request = job.request
        job.admitted_s = job.admitted_s or time.monotonic()
        stop = min(job.num_made + self.per_step, request.max_tokens)
        token_ids = self.answer[job.num_made : stop]
        job.num_made += len(token_ids)
        reason = None
        if job.num_made == len(self.answer):
            reason = FinishReason.STOP
        elif job.num_made == request.max_tokens:
            reason = FinishReason.LENGTH
        return Increment(
            index=request.index,
            token_ids=token_ids,
            logprobs=logprobs_of(token_ids, request.params.logprobs),
            finish_reason=reason,
        )

    def _enter(self) -> None:
        self.threads.add(threading.current_thread().name)


def logprobs_of(token_ids: Sequence[int], count: int | None) -> list[Logprob] | None:
    """Made up: the chosen token is the likeliest, and the ids after it are next."""
    if count is None:
        return None
    return [
        Logprob(-0.5, {token + rank: -0.5 - rank for rank in range(count)})
        for token in token_ids
    ]
