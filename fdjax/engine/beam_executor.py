"""`BeamExecutor`: the calls that search with beams, over the KV array of an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fdjax.engine.awaited_beams import AwaitedBeams, AwaitedSearch
from fdjax.engine.beam_batches import (
    batches,
    first_call,
    kind_of,
    largest_power,
    padded_count,
)
from fdjax.engine.beam_padding import BeamPadding
from fdjax.engine.beam_preparation import BeamPreparation
from fdjax.engine.beam_programs import Alike, Kind
from fdjax.engine.beam_tables import BeamTables
from fdjax.engine.buckets import Buckets
from fdjax.engine.programs import Programs
from fdjax.engine.search import Search
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamStep
from fdjax.generate.beam_state import stop_ids
from fdjax.generate.packed import Packed
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float


class BeamExecutor:
    """Runs searches, those that are alike in one call; launches without waiting.

    Args:
        config: of the model.
        programs: its programs.
        layout: of the KV array.
        buckets: shapes; a search's width is padded to a number of rows.

    Attributes:
        preparation: compiles programs before they are needed.
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
        self._buckets = buckets
        self._tables = BeamTables(config, layout, buckets)
        self._padding = BeamPadding()
        self.preparation = BeamPreparation(
            config, programs, self._tables, layout, buckets
        )

    def begin(
        self, sequence: EngineSequence, logits: Float[Array, "A V"], place: int
    ) -> AwaitedBeams:
        """Chooses first tokens, from the logits of the prompt's last.

        Args:
            sequence: whose prompt is in the KV array.
            logits: of prompts.
            place: which of them is its.
        """
        group = sequence.search
        state = self.preparation.state(sequence.request)
        places = np.full(group.params.num_beam_groups, place, np.int32)
        operands = logits, jax.device_put(places), state.rules, state.progress
        if group.judges is None:
            rules, run, step = self._run([group], "begin", operands)
        else:
            allowed = jax.device_put(group.judges.first_mask()[None])
            judged = *operands, allowed
            rules, run, step = self._run([group], "begin_judged", judged)
        group.begin(rules, run)
        group.kind = self._kind(sequence)
        return self._launched([sequence], step)

    def batches(
        self,
        searches: Sequence[EngineSequence],
        *,
        fits: Callable[[EngineSequence, int], bool],
    ) -> list[list[EngineSequence]]:
        """Searches in the batches that take their next step in one call.

        Args:
            searches: whose next step is due.
            fits: whether there is room for a call of so many that are like one.
        """

        def most(same: Sequence[EngineSequence]) -> int:
            width = same[0].search.run_width
            room = largest_power(self._buckets.rows[-1] // width or 1)
            count = min(first_call(len(same), rows=width), room)
            while count > 1 and not (
                self._is_ready(same[:count], count) and fits(same[0], count)
            ):
                count //= 2
            return count

        return batches(searches, most=most)

    def step(
        self, searches: Sequence[EngineSequence], kv: KVCache
    ) -> tuple[KVCache, AwaitedBeams]:
        """Feeds beams' tokens and chooses the next; `kv` is donated.

        Args:
            searches: a batch, which is padded. Where candidates are judged, which are
                then those of one search, it chooses among them first.
            kv: the KV array.
        """
        sequence, group = searches[0], searches[0].search
        weights, run = self._programs.weights, group.run
        if group.judges is None:
            return self._step(searches, kv)
        rules, judgement = group.rules, group.judgement
        assert judgement is not None
        if sequence.num_launched > sequence.limit:
            step = self._run([group], "end_judged", (rules, run, judgement))
        else:
            pages = self._tables.pages(searches)
            operands = weights, kv, rules, run, pages, judgement
            kv, group.run, step = self._run([group], "judged_step", operands)
        return kv, self._launched(searches, step)

    def _step(
        self, searches: Sequence[EngineSequence], kv: KVCache
    ) -> tuple[KVCache, AwaitedBeams]:
        """Of searches that nobody judges."""
        groups, count = [one.search for one in searches], len(searches)
        num_padding = padded_count(count) - count
        padding = self._padding.take(groups[0], num_padding)
        rules = tuple(one.rules for one in groups) + (groups[0].rules,) * num_padding
        runs = *(one.run for one in groups), *padding
        pages = self._tables.pages(searches)
        operands = self._programs.weights, kv, rules, runs, pages
        kv, after, step = self._run(groups, "step", operands)
        for one, run in zip(groups, after[:count], strict=True):
            one.run = run
        self._padding.give(groups[0], after[count:])
        return kv, self._launched(searches, step)

    def _kind(self, sequence: EngineSequence) -> Alike | None:
        if not sequence.request.goes_in_batches:
            return None
        group, width = sequence.search, self._buckets.width(len(sequence.pages))
        return kind_of((group.rules, group.run), width)

    def _is_ready(self, searches: Sequence[EngineSequence], count: int) -> bool:
        """No step compiles what was to be prepared; what was not, is compiled then.

        Args:
            searches: of a call.
            count: with its padding.
        """
        groups = [one.search for one in searches]
        if not any(one.request.programs for one in searches):
            return True
        beams, tables = self._programs.beams, self._tables
        pages = tables.shapes(*tables.sizes(searches))
        alike = (groups[0].rules,) * count, (groups[0].run,) * count
        key = beams.key("step", (None, None, *alike, pages))
        if any(key in group.programs for group in groups):
            return True
        if (program := beams.kept(key)) is None:
            return False
        groups[0].programs[key] = program  # others may replace it until it is called
        return True

    def _run(
        self, groups: Sequence[Search], kind: Kind, operands: tuple[Any, ...]
    ) -> Any:
        """Runs a program, which is compiled now if none of the groups has it."""
        beams = self._programs.beams
        key = beams.key(kind, operands)
        having = (one.programs[key] for one in groups if key in one.programs)
        program = next(having, None)
        if program is None:
            program = groups[0].programs[key] = beams.compiled(kind, key, operands)
        return program.call(*operands)

    def _launched(
        self, searches: Sequence[EngineSequence], step: Packed[BeamStep]
    ) -> AwaitedBeams:
        launched: list[AwaitedSearch] = []
        first = 0
        for one in searches:
            ends = stop_ids(one.request.params, self._config.eos_token_ids)
            launched.append(AwaitedSearch(one, first, ends))
            first += one.search.params.num_beam_groups
        return AwaitedBeams(tuple(launched), step).start_copy()
