"""An engine without a model: it says what it was told to, and fails when told to."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fdjax.engine.checked_request import make_request
from fdjax.engine.limits import NOTHING, Load, QueueLimits
from fdjax.engine.matcher import Grammar
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import NOBODY, Waiting
from fdjax.engine.request import Embedded, Increment, Logprob, Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import QueueFullError, RequestError
from fdjax.generate.any_params import AnyParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.generate.stopping import FinishReason

VOCAB_SIZE = 4096
MAX_MODEL_LEN = 64
HIDDEN_SIZE = 8


@dataclass(eq=False)
class FakeSequence:
    """A request on its way."""

    request: Request
    origin: Origin
    num_made: int = 0
    admitted_s: float | None = None
    num_cached: int = 1


class FakeEngine:
    """Answers every request with the same tokens, one a step.

    Args:
        answer: the tokens; the request ends with the last of them, or at its limit.
        per_step: how many of them come in a step.
        step_s: seconds of a step.
        fails_at: the step that raises, from 1.
        max_sequences: more are refused.
        hung: no step ends before it is set, but the first `hangs_after`.
        crowd: no token comes before so many requests have been added.

    Attributes:
        sequences: that have not ended.
        parked: sequences that make no tokens.
        aborted: requests ended by `abort`.
        threads: that have called anything.
        added: all sequences there ever were.
        holds: whether the next step may wait.
    """

    def __init__(
        self,
        answer: Sequence[int] = (),
        *,
        per_step: int = 1,
        step_s: float = 0.0,
        fails_at: int | None = None,
        max_sequences: int | None = None,
        hung: threading.Event | None = None,
        hangs_after: int = 0,
        crowd: int = 0,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.answer = list(answer)
        self.per_step = per_step
        self.step_s = step_s
        self.fails_at = fails_at
        self.max_sequences = max_sequences
        self.hung = hung
        self.hangs_after = hangs_after
        self.crowd = crowd
        self.max_model_len = max_model_len
        self.num_steps = 0
        self.sequences: list[FakeSequence] = []
        self.parked: set[FakeSequence] = set()
        self.added: list[FakeSequence] = []
        self.aborted: list[Request] = []
        self.threads: set[str] = set()
        self.holds: Callable[[], bool] = lambda: False

    def request(
        self,
        index: int,
        prompt: Sequence[int],
        params: AnyParams,
        grammar: Grammar | None = None,
    ) -> Request:
        self._enter()
        pooling = None
        if isinstance(params, PoolingParams):
            params.check_width(HIDDEN_SIZE)
            pooling, params = params, params.sampling
        if not isinstance(params, SamplingParams):
            raise RequestError("beam_width is for engines that can search")
        return make_request(
            index,
            prompt,
            params,
            vocab_size=VOCAB_SIZE,
            max_model_len=self.max_model_len,
            grammar=grammar,
            pooling=pooling,
        )

    def prepare(self, request: Request, *, only_kept: bool) -> Request | None:
        del only_kept
        return request

    def prepare_batches(self, request: Request) -> bool:
        """There is nothing to compile."""
        del request
        return False

    def check_queue(
        self, more: Load, origin: Origin | None = None, claimed: Waiting = NOBODY
    ) -> None:
        """Any thread may ask."""
        now = len(self.sequences) + claimed.load.samples
        if self.max_sequences is not None and now + more.samples > self.max_sequences:
            raise QueueFullError(f"{len(self.sequences)} samples wait; try later")

    @property
    def limits(self) -> QueueLimits:
        """All sequences are said to wait."""
        return QueueLimits(samples=self.max_sequences)

    def waiting(self) -> Waiting:
        """Any thread may ask."""
        tenants: dict[str, Load] = {}
        for one in list(self.sequences):
            name = one.origin.tenant
            tenants[name] = tenants.get(name, NOTHING).plus(Load(samples=1))
        return Waiting(Load(samples=len(self.sequences)), tenants)

    def add_samples(
        self, requests: Sequence[Request], origin: Origin | None = None
    ) -> list[FakeSequence]:
        self._enter()
        sequences = [FakeSequence(one, origin or Origin()) for one in requests]
        self.sequences += sequences
        self.added += sequences
        return sequences

    def park(self, sequence: FakeSequence) -> None:
        self._enter()
        self.parked.add(sequence)

    def resume(self, sequence: FakeSequence) -> None:
        self._enter()
        self.parked.discard(sequence)

    def abort(self, sequence: FakeSequence) -> None:
        self._enter()
        if sequence in self.sequences:
            self.sequences.remove(sequence)
            self.aborted.append(sequence.request)

    def wait(self) -> None:
        """Nothing has been launched."""
        self._enter()

    @property
    def spare_s(self) -> float:
        """As long as `holds` is so."""
        self._enter()
        return 1.0 if self.holds() else 0.0

    @property
    def has_work(self) -> bool:
        self._enter()
        return any(sequence not in self.parked for sequence in self.sequences)

    def statistics(self) -> EngineStatistics:
        """Made up, each number another one; any thread may ask."""
        return EngineStatistics(
            num_running=len(self.sequences),
            num_waiting=3,
            page_size=16,
            num_pages=80,
            num_held_pages=20,
            num_preemptions=5,
            num_queried_tokens=70,
            num_cached_tokens=30,
            softmax=SoftmaxStatistics(query_heads=1000, recomputed=(2, 7)),
            tenants={"alice": (6, 4)},
            boundary=40,
            fragmentation=0.125,
            num_moved_pages=12,
            num_put_back_for_room=1,
            num_borrowed_pages=5,
        )

    def step(self) -> list[tuple[FakeSequence, Increment]]:
        self._enter()
        self.num_steps += 1
        time.sleep(self.step_s)
        if self.hung is not None and self.num_steps > self.hangs_after:
            self.hung.wait()
        if self.num_steps == self.fails_at:
            raise FloatingPointError("the step was told to fail")
        if len(self.added) < self.crowd:
            return []
        going = [sequence for sequence in self.sequences if sequence not in self.parked]
        made = [(sequence, self._advance(sequence)) for sequence in going]
        ended = {
            sequence
            for sequence, increment in made
            if increment.finish_reason is not None
        }
        self.sequences = [
            sequence for sequence in self.sequences if sequence not in ended
        ]
        return made

    def _advance(self, sequence: FakeSequence) -> Increment:
        request = sequence.request
        sequence.admitted_s = sequence.admitted_s or time.monotonic()
        if request.pooling is not None:
            vector = vector_of(request)
            reason = FinishReason.STOP
            return Embedded(request.index, [], None, reason, embedding=vector)
        num_scores = request.params.prompt_logprobs
        is_first = sequence.num_made == 0
        stop = min(sequence.num_made + self.per_step, request.max_tokens)
        token_ids = self.answer[sequence.num_made : stop]
        sequence.num_made += len(token_ids)
        reason = None
        if sequence.num_made == len(self.answer):
            reason = FinishReason.STOP
        elif sequence.num_made == request.max_tokens:
            reason = FinishReason.LENGTH
        return Increment(
            index=request.index,
            token_ids=token_ids,
            logprobs=logprobs_of(token_ids, request.params.logprobs),
            finish_reason=reason,
            prompt_logprobs=scores_of(request.prompt, num_scores) if is_first else None,
        )

    def _enter(self) -> None:
        self.threads.add(threading.current_thread().name)


def vector_of(request: Request) -> np.ndarray:
    """Made up: the prompt's first token, and then its length, again and again."""
    assert request.pooling is not None
    vector = np.full(HIDDEN_SIZE, len(request.prompt), np.float32)
    vector[0] = request.prompt[0]
    return vector[: request.pooling.dimensions]


def logprobs_of(token_ids: Sequence[int], count: int | None) -> list[Logprob] | None:
    """Made up: the chosen token is the likeliest, and the ids after it are next."""
    if count is None:
        return None
    return [
        Logprob(-0.5, {token + rank: -0.5 - rank for rank in range(count)})
        for token in token_ids
    ]


def scores_of(prompt: Sequence[int], count: int | None) -> list[Logprob | None] | None:
    """Made up: every token of the prompt but the first is the second likeliest."""
    if count is None:
        return None
    tops = ([token + 1, token, *range(token + 2, token + count)] for token in prompt)
    values = ({one: -1.0 - rank for rank, one in enumerate(top)} for top in tops)
    scores = [Logprob(-2.0, dict([*one.items()][:count])) for one in values]
    return [None, *scores[1:]]
