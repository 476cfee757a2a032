"""`Executor`: what an engine keeps on the device, and the calls that change it."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fdjax.engine.allowed import masks_of, padded_masks
from fdjax.engine.awaited_beams import AwaitedBeams
from fdjax.engine.beam_executor import BeamExecutor
from fdjax.engine.borrowing import Borrowing
from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.budget import Timed, TokenBudget
from fdjax.engine.device_table import DeviceTable
from fdjax.engine.kv_calls import KVCalls
from fdjax.engine.pace import Pace
from fdjax.engine.pooled_prompt import AwaitedStates
from fdjax.engine.programs import Programs
from fdjax.engine.request import Increment
from fdjax.engine.results import AwaitedTokens
from fdjax.engine.row_tokens import pages_of, row_tokens, rows_of
from fdjax.engine.scored_prompt import Piece
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.shared_reads import SharedReads
from fdjax.engine.states import States, kept
from fdjax.engine.timed_gemms import tunes_gemms
from fdjax.generate.plan import SERVING_PLANS, SamplingPlan
from fdjax.generate.row_pages import RowPages
from fdjax.generate.sampling import Sampled
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Bool, Float

type AnyAwaited = AwaitedTokens | AwaitedBeams | AwaitedStates


class Executor:
    """Runs the compiled programs over the one KV array and the rows of the batch.

    Every call donates what it changes and launches without waiting.

    Args:
        model: the decoder, loaded; or not yet, see `Sleeping`.
        plan: where its memory goes; the KV array is allocated here, if it is loaded.
        buckets: shapes; the last of its rows is how many there are.
        pace: decode steps of each launch.
        budget: tokens of each call with prompts.
        mixed: calls with prompts may have rows that decode.
        borrowing: what is kept free for calls at the end of the KV array.
        shared_reads: finds pages that rows share, to be read once; or `None`.
    """

    def __init__(
        self,
        model: Decoder,
        plan: MemoryPlan,
        buckets: Buckets,
        pace: Pace,
        budget: TokenBudget,
        *,
        mixed: bool,
        borrowing: Borrowing,
        shared_reads: SharedReads | None = None,
    ) -> None:
        self._config = model.config
        self._layout = plan.layout
        self._buckets = buckets
        self.mixed = mixed
        most = {
            "num_tokens": buckets.prefills[-1],
            "num_rows": buckets.rows[-1],
            "width": buckets.widths[-1],
        }
        self.programs = Programs(
            model,
            steps_per_launch=pace.most,
            mixed=mixed,
            tunes_gemms=tunes_gemms(model.config, plan.layout, **most),
            kept=lambda kind, n: borrowing.pages(kind, n) * plan.layout.page_bytes,
        )
        self.beams = BeamExecutor(model.config, self.programs, plan.layout, buckets)
        self._calls = KVCalls(self.programs, plan.layout, buckets)
        self.pace = pace
        self.budget = budget
        self.plan = SERVING_PLANS[0]
        self.shared_reads = shared_reads
        self._states = States(
            model.config,
            num_rows=buckets.rows[-1],
            num_arrivals=buckets.prefill_rows,
        )
        self._begin()
        jax.block_until_ready(self.kv)  # one that does not fit fails here

    @property
    def kv(self) -> KVCache:
        """The KV array, as the last call left it."""
        return self.progress.kv

    def take_kv(self) -> None:
        """Allocates the KV array that is not there."""
        self._keep(self.programs.beside(self._layout.allocate()))
        jax.block_until_ready(self.kv)

    def restart(self) -> None:
        """As at the beginning: an interrupt may have lost what was donated."""
        if not self.kv.array.is_deleted():
            self.kv.array.delete()  # there is no room for two
        self.plan = SERVING_PLANS[0]
        self._begin()

    def forget_counts(self) -> None:
        """As if nothing had been computed yet: nobody asked for it."""
        self.progress = self._states.uncounted(self.progress)

    def use(self, plan: SamplingPlan) -> None:
        """Goes over to another plan; what rows have in both is kept."""
        if plan == self.plan:
            return
        self.plan = plan
        fresh = self.programs.beside(self._states.empty(plan))
        self.rules = kept(self.rules, fresh.rules)
        sampling = kept(self.progress.sampling, fresh.progress)
        self.progress = dataclasses.replace(self.progress, sampling=sampling)

    def extend(
        self, sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
    ) -> list[AnyAwaited]:
        """Computes chunks of prompts, and a step of sequences that decode beside them.

        Args:
            sequences: that decode; none unless `mixed`.
            chunks: those that complete a prompt bring its first token.

        Returns:
            The tokens: of all rows together, and of each beam search; and the vectors
            of those that are pooled.
        """
        pooled = [chunk for chunk in chunks if chunk.sequence.pooled is not None]
        others = [chunk for chunk in chunks if chunk.sequence.pooled is None]
        goes_on = bool(sequences or others)
        launches = [self.pool(pooled, goes_on=goes_on)] if pooled else []
        before = launches[0].timed if launches else None
        return launches + (
            self._continued(sequences, others, before) if goes_on else []
        )

    def pool(
        self, chunks: Sequence[PromptChunk], *, goes_on: bool = False
    ) -> AwaitedStates:
        """Computes chunks of sequences that are pooled.

        Args:
            chunks: of their prompts.
            goes_on: the step has another call.
        """
        self.pace.prefilled()
        count = sum(chunk.size for chunk in chunks)
        timed = self.budget.launched(count, goes_on=goes_on)
        kv, launch = self._calls.pool(self.kv, chunks)
        self._keep(kv)
        return dataclasses.replace(launch, timed=timed)

    def _continued(
        self,
        sequences: Sequence[EngineSequence],
        chunks: Sequence[PromptChunk],
        behind: Timed | None,
    ) -> list[AnyAwaited]:
        for chunk in chunks:
            if (scores := chunk.sequence.scored) is not None and scores.num_missing:
                stop = min(chunk.stop, chunk.sequence.num_prompt - 1)
                scores.add(self.score(chunk.sequence, chunk.start, stop))
        self._allow(sequences)
        rows = rows_of(sequences, chunks, self._buckets.rows[-1])
        count = len(sequences) + sum(chunk.size for chunk in chunks)
        num_tokens, num_prompts = self._buckets.call_shape(count, len(chunks))
        self.progress, changes, counts = self.table.turn(
            self.progress,
            pages_of(sequences, chunks, rows),
            num_rows=self.table.num_rows,
            room=self.table.num_rows + num_tokens // self._layout.page_size,
        )
        call = row_tokens(
            sequences,
            chunks,
            rows,
            changes=changes,
            counts=counts,
            width=self._buckets.widths[-1],
            num_tokens=num_tokens,
            num_prompts=num_prompts,
        )
        self.pace.prefilled()
        timed = self.budget.launched(num_tokens, behind=behind)
        self.progress, hidden = self.programs.extend(self.progress, call)
        done = [
            (row, c.sequence) for row, c in zip(rows, chunks, strict=True) if c.is_last
        ]
        arrived = [sequence for _, sequence in done if not sequence.is_search]
        sampled = self._sample(hidden, call.decodes, arrived)
        columns = (
            (sequence, sequence.row)
            for sequence in [*sequences, *arrived]
            if sequence.row is not None
        )
        searches = ((row, one) for row, one in done if one.is_search)
        launches: list[AnyAwaited] = [
            self.beams.begin(one, self.programs.logits(hidden, row), 0)
            for row, one in searches
        ]
        launch = AwaitedTokens(sampled, tuple(columns), timed=timed).start_copy()
        return [launch, *launches]

    def sample_nobody(self) -> None:
        """What follows a call with prompts, of rows that nobody has."""
        num_rows = self._buckets.rows[-1]
        zeros = np.zeros((num_rows, self._config.hidden_size), self._layout.dtype)
        hidden = self.programs.beside(jax.device_put(zeros))
        self._sample(hidden, jax.device_put(np.zeros(num_rows, bool)), [])

    def _sample(
        self,
        hidden: Float[Array, "R E"],
        decodes: Bool[Array, " R"],
        arrived: Sequence[EngineSequence],
    ) -> Sampled:
        self.rules, self.progress, sampled = self.programs.sample(
            hidden,
            decodes,
            self._states.arrivals(arrived, self.plan),
            self.rules,
            self.progress,
            plan=self.plan,
        )
        return sampled

    def score(self, sequence: EngineSequence, start: int, stop: int) -> list[Piece]:
        """See `KVCalls.score`."""
        kv, pieces = self._calls.score(self.kv, sequence, start, stop)
        self._keep(kv)
        return pieces

    def move(self, moves: Mapping[int, int]) -> None:
        """Copies pages to others, after all that was launched; nobody waits for it.

        Args:
            moves: from which page to which; no page is both.
        """
        self.pace.prefilled()
        self._keep(self._calls.move(self.kv, moves))

    def place(self, changes: np.ndarray) -> None:
        """Changes the page table of rows: see `DeviceTable.place`."""
        self.progress = self.table.place(self.progress, changes)

    def decode(
        self,
        sequences: Sequence[EngineSequence],
        *,
        prefixes: SharedPrefixes | None = None,
        width: int | None = None,
        steps_each: int | None = None,
    ) -> AwaitedTokens:
        """Runs decode steps of the rows; finds out what is not told.

        Args:
            sequences: that decode.
            prefixes: what they share.
            width: pages that one of them has at most.
            steps_each: of a row, unless a grammar holds it.
        """
        rows = [sequence.row for sequence in sequences if sequence.row is not None]
        pages = [sequence.pages for sequence in sequences]
        num_rows = smallest_fitting(self._buckets.rows, max(rows) + 1)
        self.progress, changes, counts = self.table.turn(
            self.progress,
            dict(zip(rows, pages, strict=True)),
            num_rows=num_rows,
            room=num_rows,
        )
        if prefixes is None and self.shared_reads is not None:
            prefixes = self.shared_reads.of(sequences, self.table.first(num_rows))
        if prefixes is not None:  # there is one width alone: fewer programs
            width = self._buckets.widths[-1]
        elif width is None:
            widths = self._buckets.decode_widths(num_rows)
            width = smallest_fitting(widths, max(map(len, pages)))
        steps = np.zeros(num_rows, np.int32)
        steps[rows] = steps_each or self.pace.steps
        steps[self._allow(sequences)] = 1
        count = int(steps.max())
        changes, counts, steps_there = jax.device_put((changes, counts, steps))
        began_s = self.pace.now()
        self.progress, sampled = self.programs.decode(
            self.rules,
            self.progress,
            RowPages(changes, counts, width),
            steps_there,
            prefixes,
            plan=self.plan,
            all_steps=self.pace.has_own_program(count),
        )
        columns = tuple(zip(sequences, rows, strict=True))
        launched = self.pace.launched(count, began_s)
        return AwaitedTokens(sampled, columns, launched).start_copy()

    def search(self, searches: Sequence[EngineSequence]) -> AwaitedBeams:
        """Runs a step of beam searches: a batch of `BeamExecutor.batches`."""
        self.pace.prefilled()
        kv, launch = self.beams.step(searches, self.kv)
        self._keep(kv)
        return launch

    def read(self, launch: AnyAwaited) -> list[tuple[EngineSequence, Increment]]:
        """Waits for a launch's tokens, and learns how long that takes."""
        waited = not launch.is_ready
        increments = list(launch.read())
        if launch.steps is not None:
            self.pace.read(launch.steps, waited=waited)
        self.budget.read(launch.timed, waited=waited)
        return increments

    def allow(self, rows: Sequence[int], masks: Sequence[np.ndarray]) -> None:
        """Replaces what rows may emit next."""
        vocab_size = self._config.embedding.vocab_size
        operands = padded_masks(rows, masks, self._buckets, vocab_size=vocab_size)
        allowed = self.programs.allow(self.rules.allowed, *jax.device_put(operands))
        self.rules = dataclasses.replace(self.rules, allowed=allowed)

    def exchange(self, source: Sequence[int]) -> None:
        """Moves sequences to other rows: row `r` becomes what `source[r]` was."""
        order = jax.device_put(np.array(source, np.int32))
        self.rules, self.progress = self.programs.exchange(
            self.rules, self.progress, order
        )

    def _keep(self, kv: KVCache) -> None:
        self.progress = dataclasses.replace(self.progress, kv=kv)

    def _allow(self, sequences: Sequence[EngineSequence]) -> list[int]:
        """Sends the masks of sequences that have one; other rows allow all tokens.

        Returns:
            The rows of these sequences.
        """
        rows, masks = masks_of(sequences)
        if rows:
            self.allow(rows, masks)
        return rows

    def _begin(self) -> None:
        """Has rows that nobody has."""
        num_pages = self._layout.num_pages
        self.table = DeviceTable(self.programs, self._buckets, num_pages)
        allocate, table = self._layout.allocate, self.table.first(self.table.num_rows)
        kv = allocate() if self.programs.has_weights else jax.eval_shape(allocate)
        fresh = self._states.begin(self.plan, kv, table)
        self.rules, self.progress = self.programs.beside(fresh)
