"""`Engine`: serves requests in waves, launching steps ahead of their results."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.executor import Executor
from fdjax.engine.request import Increment, Request, make_request
from fdjax.engine.wave import Prompts, Reader, prompt_groups
from fdjax.errors import MemoryBudgetError
from fdjax.generate.loop import GenerationProgress, GenerationRules
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan, plan_of
from fdjax.generate.sampling import Sampled
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.memory.pages import PagePool
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder

# Steps launched whose results the host has not read, so that the device never waits.
TOKENS_AHEAD = 16


class Engine:
    """Continues prompts given as token ids.

    Requests run in waves: as many as rows and pages allow start together, and the
    next wave starts when the last of them has ended. Several runs may be under way at
    once: they take turns on the one KV array, each in pages of its own.

    Args:
        model: the decoder, loaded.
        plan: where its memory goes; the KV array is allocated here.
        buckets: the shapes that programs are compiled for.
        steps_per_launch: decode steps of one call, and so tokens of an increment.
        seed: of the draws of requests that bring no seed.
    """

    def __init__(
        self,
        model: Decoder,
        plan: MemoryPlan,
        buckets: Buckets,
        *,
        steps_per_launch: int = 8,
        seed: int = 0,
    ) -> None:
        self.config = model.config
        self.plan = plan
        self.buckets = buckets
        self._steps_per_launch = steps_per_launch
        self._pool = PagePool(plan.layout.num_pages)
        self._executor = Executor(
            model, plan, steps_per_launch=steps_per_launch, seed=seed
        )

    def request(
        self, index: int, prompt: Sequence[int], params: SamplingParams
    ) -> Request:
        """A checked request.

        Raises:
            RequestError: the prompt or the parameters cannot be served.
        """
        return make_request(
            index,
            prompt,
            params,
            vocab_size=self.config.embedding.vocab_size,
            max_model_len=self.plan.max_model_len,
        )

    def run(self, requests: Iterable[Request]) -> Iterator[Increment]:
        """Yields increments of all requests as they come, wave after wave.

        Raises:
            MemoryBudgetError: other runs, not yet ended or closed, hold so many pages
                that the next request does not fit.
        """
        self._executor.restore()
        waiting = deque(requests)
        while waiting:
            wave, pages = self._next_wave(waiting)
            try:
                yield from self._run_wave(wave, pages)
            finally:
                for held in pages:
                    self._pool.give_back(held)

    def softmax_statistics(self) -> SoftmaxStatistics:
        """See `Executor.softmax_statistics`."""
        return self._executor.softmax_statistics()

    def warm_up(
        self,
        params: Sequence[SamplingParams] = (SamplingParams(temperature=0.0),),
        *,
        max_tokens: int | None = None,
    ) -> int:
        """Compiles every program that requests with such parameters can need.

        Args:
            params: one plan of sampling is compiled for each.
            max_tokens: longest sequence to be ready for, prompt and output together;
                the model's limit by default.

        Returns:
            The number of programs run.
        """
        longest = min(max_tokens or self.plan.max_model_len, self.plan.max_model_len)
        widest = self._width(self.plan.layout.pages_for(longest))
        count = 0
        for plan in {plan_of([one]): None for one in params}:
            for num_rows in self.buckets.rows:
                for width in self._widths(num_rows, widest):
                    count += self._warm(plan, num_rows=num_rows, width=width)
        return count

    def _warm(self, plan: SamplingPlan, *, num_rows: int, width: int) -> int:
        held = width * self.plan.layout.page_size
        longest = smallest_fitting(self.buckets.prompts, held)
        prompts = [prompt for prompt in self.buckets.prompts if prompt <= longest]
        count = 1
        rules, progress = self._executor.batch(
            [], [], plan=plan, num_rows=num_rows, width=width
        )
        for prompt in prompts:
            limit = self.buckets.prefill_rows(prompt, num_rows)
            for rows in (step for step in self.buckets.rows if step <= limit):
                empty = Prompts(
                    rows=np.full(rows, num_rows, np.int32),
                    tokens=np.zeros((rows, prompt), np.int32),
                    lengths=np.zeros(rows, np.int32),
                )
                progress, _ = self._executor.admit(rules, progress, empty, plan=plan)
                count += 1
        self._executor.launch(rules, progress, plan=plan)
        return count

    def _width(self, num_pages: int) -> int:
        return smallest_fitting(self.buckets.widths, num_pages)

    def _widths(self, num_rows: int, widest: int) -> list[int]:
        """Page-table widths that a batch of `num_rows` may have."""
        steps = (width for width in self.buckets.widths if width <= widest)
        return [width for width in steps if self._gatherable(num_rows, width)]

    def _gatherable(self, num_rows: int, width: int) -> bool:
        """Where pages are gathered, the plan has room for the KV array once."""
        if self.plan.page_workspace_bytes == 0:
            return True
        return num_rows == 1 or num_rows * width <= self.plan.layout.num_pages

    def _next_wave(
        self, waiting: deque[Request]
    ) -> tuple[list[Request], list[list[int]]]:
        wave: list[Request] = []
        pages: list[list[int]] = []
        width = 0
        while waiting and len(wave) < self.buckets.rows[-1]:
            needed = self.plan.layout.pages_for(waiting[0].num_kv_tokens)
            width = max(width, self._width(needed))
            num_rows = smallest_fitting(self.buckets.rows, len(wave) + 1)
            if needed > self._pool.num_free or not self._gatherable(num_rows, width):
                break
            wave.append(waiting.popleft())
            pages.append(self._pool.take(needed))
        if not wave:
            needed = self.plan.layout.pages_for(waiting[0].num_kv_tokens)
            raise MemoryBudgetError(
                f"a request needs {needed} pages, but other runs hold all but "
                f"{self._pool.num_free} of {self._pool.num_pages}; let them end, or "
                "close them"
            )
        return wave, pages

    def _run_wave(
        self, wave: list[Request], pages: list[list[int]]
    ) -> Iterator[Increment]:
        plan = plan_of([request.params for request in wave])
        num_rows = smallest_fitting(self.buckets.rows, len(wave))
        width = self._width(max(map(len, pages)))
        rules, progress = self._executor.batch(
            wave, pages, plan=plan, num_rows=num_rows, width=width
        )
        reader = Reader(wave)
        firsts: list[tuple[np.ndarray, Sampled]] = []
        for prompts in prompt_groups(wave, num_rows=num_rows, buckets=self.buckets):
            progress, sampled = self._executor.admit(
                rules, progress, prompts, plan=plan
            )
            firsts.append((prompts.rows, sampled))
        for rows, sampled in firsts:
            yield from reader.first_tokens(rows, sampled)
        longest = max(request.max_tokens for request in wave)
        yield from self._decode(
            rules, progress, reader, plan=plan, num_steps=longest - 1
        )

    def _decode(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        reader: Reader,
        *,
        plan: SamplingPlan,
        num_steps: int,
    ) -> Iterator[Increment]:
        """Launches ahead: the device never waits for the host to read a token."""
        steps = self._steps_per_launch
        launches = -(-num_steps // steps)
        ahead = max(2, TOKENS_AHEAD // steps)
        unread: deque[Sampled] = deque()
        while reader.any_running and (launches or unread):
            while launches and len(unread) < ahead:
                progress, sampled = self._executor.launch(rules, progress, plan=plan)
                unread.append(sampled)
                launches -= 1
            yield from reader.next_tokens(unread.popleft())
