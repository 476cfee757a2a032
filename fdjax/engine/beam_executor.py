"""`BeamExecutor`: the calls that search with beams, over the KV array of an engine."""

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from fdjax import device
from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.job import Job
from fdjax.engine.page_table import page_table
from fdjax.engine.programs import Programs
from fdjax.engine.request import Found, Increment
from fdjax.engine.results import copy_ahead
from fdjax.generate.beam_loop import BeamPages, BeamStep
from fdjax.generate.beam_state import init_beams, stop_ids
from fdjax.generate.plan import plan_of
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BeamLaunch:
    """A step of a search on its way from the device, as `Launch` is for rows.

    Attributes:
        job: the search.
        step: what it says.
        stop_ids: tokens that end its beams.
    """

    job: Job
    step: BeamStep
    stop_ids: set[int]

    steps = None

    @property
    def is_ready(self) -> bool:
        """It is there."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.step))

    def wait(self) -> None:
        """Waits for it."""
        jax.block_until_ready(self.step)

    def read(self) -> Iterator[tuple[Job, Increment]]:
        """Waits for it; something comes of the last one alone."""
        step, job = jax.device_get(self.step), self.job
        if job.ended or job.group is None:
            return
        job.group.take(step)
        reason = FinishReason(int(step.finished[0]))
        if reason == FinishReason.RUNNING:
            return
        found = []
        if reason == FinishReason.STOP:
            found = job.group.found(step, self.stop_ids)
            reason = found[0].finish_reason if found else FinishReason.LENGTH
        tokens = found[0].token_ids if found else []
        yield job, Found(job.request.index, tokens, None, reason, hypotheses=found)


class BeamExecutor:
    """Runs searches, a call each; launches without waiting.

    Args:
        config: of the model.
        programs: its programs.
        layout: of the KV array.
        buckets: shapes; a search's width is padded to a number of rows.
    """

    def __init__(
        self,
        config: ModelConfig,
        programs: Programs,
        layout: KVLayout,
        buckets: Buckets,
    ) -> None:
        self._config = config
        self._programs = programs
        self._layout = layout
        self._buckets = buckets

    def begin(self, job: Job, logits: Float[Array, "A V"], place: int) -> BeamLaunch:
        """Chooses first tokens, from the logits of the prompt's last.

        Args:
            job: whose prompt is in the KV array.
            logits: of prompts.
            place: which of them is its.
        """
        assert job.group is not None
        params, layout = job.group.params, self._layout
        _warn_once()
        plan = plan_of([params.sampling])
        pages = self._width(layout.pages_for(job.request.max_tokens))
        state = init_beams(
            [params],
            [job.request.prompt],
            width=smallest_fitting(self._buckets.rows, job.group.width),
            limit=pages * layout.page_size,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            num_stop_ids=plan.num_stop_ids,
            num_biased=plan.num_biased,
            penalties=plan.penalties,
        )
        job.group.rules = state.rules
        places = jax.device_put(np.array([place], np.int32))
        job.group.run, step = self._programs.begin_beams(
            logits, places, state.rules, state.progress
        )
        return self._launched(job, step)

    def step(self, job: Job, kv: KVCache) -> tuple[KVCache, BeamLaunch]:
        """Feeds the beams' tokens and chooses the next; `kv` is donated."""
        group = job.group
        assert group is not None
        assert group.rules is not None and group.run is not None
        absent = self._layout.num_pages
        prompt = page_table(
            [job.pages],
            num_rows=1,
            width=self._width(len(job.pages)),
            num_pages=absent,
        )
        own = page_table(
            group.pages,
            num_rows=group.run.tokens.shape[1],
            width=self._width(len(group.pages[0])),
            num_pages=absent,
        )
        lengths = np.array([job.num_prompt], np.int32)
        pages = BeamPages(*jax.device_put((prompt, lengths, own[None])))
        kv, group.run, step = self._programs.beam_step(
            kv, group.rules, group.run, pages
        )
        return kv, self._launched(job, step)

    def _launched(self, job: Job, step: BeamStep) -> BeamLaunch:
        copy_ahead(step)
        ends = stop_ids(job.request.params, self._config.eos_token_ids)
        return BeamLaunch(job, step, ends)

    def _width(self, num_pages: int) -> int:
        return smallest_fitting(self._buckets.widths, num_pages)


@functools.cache
def _warn_once() -> None:
    if device.platform() == "gpu":
        logger.warning(
            "beam search computes attention by its definition: no kernel for a GPU "
            "follows beams yet, and its temporaries are not in the memory plan"
        )
