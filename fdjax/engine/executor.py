"""`Executor`: what an engine keeps on the device, and the calls that change it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fdjax.engine.beam_executor import BeamExecutor, BeamLaunch
from fdjax.engine.buckets import SCORED_TOKENS, Buckets, smallest_fitting
from fdjax.engine.job import Chunk, Job
from fdjax.engine.pace import Pace
from fdjax.engine.page_table import RowTable, page_table
from fdjax.engine.programs import Programs
from fdjax.engine.request import Increment
from fdjax.engine.results import Launch, copy_ahead
from fdjax.engine.scored_prompt import Piece
from fdjax.generate.loop import GenerationProgress
from fdjax.generate.masks import stack_masks
from fdjax.generate.plan import SERVING_PLANS, SamplingPlan
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
    init_state,
)
from fdjax.generate.softmax_counts import SoftmaxCounts, SoftmaxStatistics
from fdjax.kernels.paged import KVCache
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32


class Executor:
    """Runs the compiled programs over the one KV array and the rows of the batch.

    Every call donates what it changes and launches without waiting.

    Args:
        model: the decoder, loaded.
        plan: where its memory goes; the KV array is allocated here.
        buckets: shapes; the last of its rows is how many there are.
        pace: decode steps of each launch.
    """

    def __init__(
        self,
        model: Decoder,
        plan: MemoryPlan,
        buckets: Buckets,
        pace: Pace,
    ) -> None:
        self._config = model.config
        self._layout = plan.layout
        self._buckets = buckets
        self.programs = Programs(model, steps_per_launch=pace.most)
        self.beams = BeamExecutor(model.config, self.programs, plan.layout, buckets)
        self.pace = pace
        self.plan = SERVING_PLANS[0]
        self._table = RowTable(
            buckets.rows[-1], buckets.widths[-1], plan.layout.num_pages
        )
        self.rules, self.progress = self._fresh()

    @property
    def kv(self) -> KVCache:
        """The KV array, as the last call left it."""
        return self.progress.kv

    def restart(self) -> None:
        """As at the beginning: an interrupt may have lost what was donated."""
        if not self.kv.array.is_deleted():
            self.kv.array.delete()  # there is no room for two
        self.plan = SERVING_PLANS[0]
        self.rules, self.progress = self._fresh()

    def use(self, plan: SamplingPlan) -> None:
        """Goes over to another plan; what rows have in both is kept."""
        if plan == self.plan:
            return
        self.plan = plan
        fresh = self._state([], num_rows=self._buckets.rows[-1])
        self.rules = _kept(self.rules, fresh.rules)
        sampling = _kept(self.progress.sampling, fresh.progress)
        self.progress = dataclasses.replace(self.progress, sampling=sampling)

    def prefill(self, chunks: Sequence[Chunk]) -> list[Launch | BeamLaunch]:
        """Computes chunks, and chooses the first tokens of the jobs that they complete.

        Returns:
            The tokens: of all rows together, and of each beam search.
        """
        for chunk in chunks:
            if (scored := chunk.job.scored) is not None and scored.num_missing:
                stop = min(chunk.stop, chunk.job.num_prompt - 1)
                scored.add(self.score(chunk.job, chunk.start, stop))
        logits, lengths = self._prefill(chunks)
        complete = [(n, c.job) for n, c in enumerate(chunks) if c.is_last]
        launches: list[Launch | BeamLaunch] = [
            self.beams.begin(job, logits, n) for n, job in complete if job.group
        ]
        if any(job.group is None for _, job in complete):
            launches.append(self._seat(chunks, logits, lengths))
        return launches

    def score(self, job: Job, start: int, stop: int) -> list[Piece]:
        """Scores what follows each of a job's tokens from `start` to `stop`.

        Their keys and values are written too; prefill writes them anew.
        """
        pieces: list[Piece] = []
        for begin in range(start, stop, SCORED_TOKENS):
            end = min(begin + SCORED_TOKENS, stop)
            padded = np.zeros((2, SCORED_TOKENS), np.int32)
            padded[0, : end - begin] = job.tokens[begin:end]
            padded[1, : end - begin] = job.tokens[begin + 1 : end + 1]
            table = page_table(
                [job.pages],
                num_rows=1,
                width=self._buckets.widths[-1],
                num_pages=self._layout.num_pages,
            )
            row = np.array([[end], [begin]], np.int32)
            operands = jax.device_put((*padded, row[0], table, row[1]))
            scores, kv = self.programs.score(self.kv, *operands)
            self.progress = dataclasses.replace(self.progress, kv=kv)
            copy_ahead(scores)
            pieces.append((scores, end - begin))
        return pieces

    def decode(self, jobs: Sequence[Job]) -> Launch:
        """Runs decode steps of the jobs' rows."""
        rows = [job.row for job in jobs if job.row is not None]
        pages = [job.pages for job in jobs]
        self._table.update(dict(zip(rows, pages, strict=True)))
        num_rows = smallest_fitting(self._buckets.rows, max(rows) + 1)
        table = self._table.part(num_rows, self._width(max(map(len, pages))))
        steps = np.zeros(num_rows, np.int32)
        steps[rows] = self.pace.steps
        steps[self._allow(jobs)] = 1
        operands = jax.device_put((table, steps))
        began_s = self.pace.now()
        self.progress, sampled = self.programs.decode(
            self.rules, self.progress, *operands, plan=self.plan
        )
        columns = tuple(zip(jobs, rows, strict=True))
        launched = self.pace.launched(int(steps.max()), began_s)
        return Launch(sampled, columns, launched).start_copy()

    def search(self, job: Job) -> BeamLaunch:
        """Runs a step of a beam search."""
        self.pace.prefilled()
        kv, launch = self.beams.step(job, self.kv)
        self.progress = dataclasses.replace(self.progress, kv=kv)
        return launch

    def read(self, launch: Launch | BeamLaunch) -> list[tuple[Job, Increment]]:
        """Waits for a launch's tokens, and learns how long that takes."""
        waited = not launch.is_ready
        increments = list(launch.read())
        if launch.steps is not None:
            self.pace.read(launch.steps, waited=waited)
        return increments

    def allow(self, rows: Sequence[int], masks: Sequence[np.ndarray]) -> None:
        """Replaces what rows may emit next."""
        num_rows = smallest_fitting(self._buckets.mask_rows, len(rows))
        padded = np.full(num_rows, self._buckets.rows[-1], np.int32)
        padded[: len(rows)] = rows
        vocab_size = self._config.embedding.vocab_size
        stacked = stack_masks(masks, num_rows=num_rows, vocab_size=vocab_size)
        allowed = self.programs.allow(
            self.rules.allowed, *jax.device_put((padded, stacked))
        )
        self.rules = dataclasses.replace(self.rules, allowed=allowed)

    def exchange(self, source: Sequence[int]) -> None:
        """Moves jobs to other rows: row `r` becomes what `source[r]` was."""
        order = jax.device_put(np.array(source, np.int32))
        self.rules, self.progress = self.programs.exchange(
            self.rules, self.progress, order
        )

    def softmax_statistics(self) -> SoftmaxStatistics:
        """How often decoding left the bounds of the unified maximum, since the start.

        Only this call reads it, and waits; zeros with the synchronised softmax.
        """
        if self.progress.softmax is None:
            return SoftmaxStatistics(0, (0,) * self._config.num_layers)
        return self.progress.softmax.read(num_heads=self._config.num_heads)

    def _prefill(
        self, chunks: Sequence[Chunk]
    ) -> tuple[Float[Array, "A V"], Int32[Array, " A"]]:
        """Logits and lengths of each chunk's row."""
        num_rows = self._buckets.prefill_rows
        count = smallest_fitting(self._buckets.prefills, sum(c.size for c in chunks))
        tokens = np.zeros(count, np.int32)
        starts, lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        place = 0
        for row, chunk in enumerate(chunks):
            tokens[place : place + chunk.size] = chunk.tokens
            starts[row], lengths[row] = chunk.start, chunk.stop
            place += chunk.size
        table = page_table(
            [chunk.job.pages for chunk in chunks],
            num_rows=num_rows,
            width=self._buckets.widths[-1],
            num_pages=self._layout.num_pages,
        )
        operands = jax.device_put((tokens, lengths, table, starts))
        self.pace.prefilled()
        logits, kv = self.programs.prefill(self.kv, *operands)
        self.progress = dataclasses.replace(self.progress, kv=kv)
        return logits, operands[1]

    def _seat(
        self,
        chunks: Sequence[Chunk],
        logits: Float[Array, "A V"],
        lengths: Int32[Array, " A"],
    ) -> Launch:
        rows = np.full(logits.shape[0], self._buckets.rows[-1], np.int32)
        columns: list[tuple[Job, int]] = []
        for place, chunk in enumerate(chunks):
            if chunk.is_last and chunk.job.row is not None and not chunk.job.group:
                rows[place] = chunk.job.row
                columns.append((chunk.job, place))
        arrivals = self._state(
            [chunk.job for chunk in chunks], num_rows=logits.shape[0]
        )
        self.rules, self.progress, sampled = self.programs.seat(
            logits,
            arrivals,
            jax.device_put(rows),
            lengths,
            self.rules,
            self.progress,
            plan=self.plan,
        )
        return Launch(sampled, tuple(columns)).start_copy()

    def _allow(self, jobs: Sequence[Job]) -> list[int]:
        """Sends the masks of jobs that have one; the others' rows allow all tokens.

        Returns:
            The rows of these jobs.
        """
        rows: list[int] = []
        masks: list[np.ndarray] = []
        for job in jobs:
            if job.matcher is not None and job.row is not None:
                rows.append(job.row)
                masks.append(job.matcher.mask())
        if rows:
            self.allow(rows, masks)
        return rows

    def _fresh(self) -> tuple[SamplingRules, GenerationProgress]:
        """Rows that nobody has."""
        state = self._state([], num_rows=self._buckets.rows[-1])
        zeros = np.zeros(self._buckets.rows[-1], np.int32)
        lengths, tokens = jax.device_put((zeros, zeros))
        progress = GenerationProgress(
            self._layout.allocate(),
            lengths,
            tokens,
            state.progress,
            SoftmaxCounts.of(self._config),
        )
        return state.rules, progress

    def _state(self, jobs: Sequence[Job], *, num_rows: int) -> SamplingState:
        return init_state(
            [job.request.limited_params for job in jobs],
            [job.request.prompt for job in jobs],
            plan=self.plan,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            default_seeds=[job.seed for job in jobs],
            num_rows=num_rows,
            outputs=[job.output for job in jobs],
            masks=[None if m is None else m.mask() for m in (j.matcher for j in jobs)],
        )

    def _width(self, num_pages: int) -> int:
        return smallest_fitting(self._buckets.widths, num_pages)


def _kept[T: (SamplingRules, SamplingProgress)](old: T, fresh: T) -> T:
    """`fresh`, with the parts that `old` has too taken from there."""
    both: dict[str, Any] = {}
    for field in dataclasses.fields(fresh):
        before, after = getattr(old, field.name), getattr(fresh, field.name)
        if before is not None and after is not None:
            both[field.name] = before
    return dataclasses.replace(fresh, **both)
