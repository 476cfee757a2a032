"""`Executor`: what an engine keeps on the device, and the calls that change it."""

import dataclasses
import random

import jax
import numpy as np

from fdjax.engine.programs import Programs
from fdjax.engine.request import Request
from fdjax.engine.wave import Prompts, page_table, sampling_state
from fdjax.generate.loop import GenerationProgress, GenerationRules
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled
from fdjax.generate.softmax_counts import SoftmaxCounts, SoftmaxStatistics
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder


class Executor:
    """Runs the compiled programs over the one KV array, which every call donates.

    Batches of several runs may alternate: each brings its own rules and progress, and
    what they share (the KV array, the softmax's counts) is here, as the last call left
    it.

    Args:
        model: the decoder, loaded.
        plan: where its memory goes; the KV array is allocated here.
        steps_per_launch: decode steps of one launch.
        seed: of the draws of requests that bring no seed.
    """

    def __init__(
        self, model: Decoder, plan: MemoryPlan, *, steps_per_launch: int, seed: int
    ) -> None:
        self._config = model.config
        self._plan = plan
        self.programs = Programs(model, steps_per_launch=steps_per_launch)
        self.kv = plan.layout.allocate()
        self._softmax = SoftmaxCounts.of(model.config)
        self._seeds = random.Random(seed)

    def batch(
        self,
        wave: list[Request],
        pages: list[list[int]],
        *,
        plan: SamplingPlan,
        num_rows: int,
        width: int,
    ) -> tuple[GenerationRules, GenerationProgress]:
        """What a batch of a wave's requests starts with.

        Args:
            wave: the requests; row `r` is `wave[r]`.
            pages: the pages of each.
            plan: what sampling needs.
            num_rows: rows of the batch, `B`.
            width: of the page table, `W`.
        """
        table = page_table(
            pages,
            num_rows=num_rows,
            width=width,
            num_pages=self._plan.layout.num_pages,
        )
        sampling = sampling_state(
            wave,
            [self._seeds.getrandbits(64) for _ in wave],
            plan=plan,
            num_rows=num_rows,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
        )
        host = (table, np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32))
        page_ids, lengths, tokens = jax.device_put(host)
        rules = GenerationRules(page_ids, sampling.rules)
        progress = GenerationProgress(
            self.kv, lengths, tokens, sampling.progress, self._softmax
        )
        return rules, progress

    def admit(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        prompts: Prompts,
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """Runs prompts and samples their first tokens; `progress` is donated."""
        operands = jax.device_put((prompts.rows, prompts.tokens, prompts.lengths))
        progress = self._continued(progress)
        progress, sampled = self.programs.admit(rules, progress, *operands, plan=plan)
        self._keep(progress)
        return progress, sampled

    def launch(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """Runs decode steps of all rows, without waiting; `progress` is donated."""
        progress = self._continued(progress)
        progress, sampled = self.programs.decode(rules, progress, plan=plan)
        self._keep(progress)
        return progress, sampled

    def restore(self) -> None:
        """Allocates what an interrupt left donated and not returned."""
        if self.kv.is_deleted():
            self.kv = self._plan.layout.allocate()
            self._softmax = SoftmaxCounts.of(self._config)

    def softmax_statistics(self) -> SoftmaxStatistics:
        """How often decoding left the bounds of the unified maximum, since the start.

        Only this call reads it, and waits; zeros with the synchronised softmax.
        """
        if self._softmax is None:
            return SoftmaxStatistics(0, (0,) * self._config.num_layers)
        return self._softmax.read(num_heads=self._config.attention.num_heads)

    def _continued(self, progress: GenerationProgress) -> GenerationProgress:
        """A batch's progress with what runs share as the last call left it."""
        return dataclasses.replace(progress, kv=self.kv, softmax=self._softmax)

    def _keep(self, progress: GenerationProgress) -> None:
        self.kv, self._softmax = progress.kv, progress.softmax
