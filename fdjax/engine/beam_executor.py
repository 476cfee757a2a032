"""`BeamExecutor`: the calls that search with beams, over the KV array of an engine."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fdjax import device
from fdjax.engine.beam_batches import (
    Alike,
    LiveSearches,
    alike,
    batches,
    kind_of,
    largest_power,
)
from fdjax.engine.beam_launch import BeamLaunch
from fdjax.engine.beam_programs import BeamProgram, Kind, Prepared
from fdjax.engine.beam_tables import BeamTables, group_of
from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.group import Group
from fdjax.engine.programs import Programs
from fdjax.engine.request import Request
from fdjax.engine.results import copy_ahead
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamPages, BeamRun, BeamStep, Judgement
from fdjax.generate.beam_state import BeamState, init_beams, stop_ids
from fdjax.generate.masks import num_words
from fdjax.generate.plan import plan_of
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float

logger = logging.getLogger(__name__)


class BeamExecutor:
    """Runs searches, those that are alike in one call; launches without waiting.

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
        self._tables = BeamTables(config, layout, buckets)
        self._live = LiveSearches()

    def begin(
        self, sequence: EngineSequence, logits: Float[Array, "A V"], place: int
    ) -> BeamLaunch:
        """Chooses first tokens, from the logits of the prompt's last.

        Args:
            sequence: whose prompt is in the KV array.
            logits: of prompts.
            place: which of them is its.
        """
        group = group_of(sequence)
        if not self._tables.prompts.are_planned:
            _warn_once()
        state = self._state(sequence.request)
        group.rules = state.rules
        places = np.full(group.params.num_beam_groups, place, np.int32)
        operands = logits, jax.device_put(places), state.rules, state.progress
        if group.judges is None:
            group.run, step = self._run([group], "begin", operands)
        else:
            allowed = jax.device_put(group.judges.first_mask()[None])
            judged = *operands, allowed
            group.run, step = self._run([group], "begin_judged", judged)
        return self._launched(sequence, step)

    def batches(
        self,
        searches: Sequence[EngineSequence],
        *,
        fits: Callable[[Sequence[EngineSequence]], bool],
    ) -> list[list[EngineSequence]]:
        """Searches in the batches that take their next step in one call.

        Args:
            searches: whose next step is due.
            fits: whether there is room for a call of some.
        """

        def most(same: Sequence[EngineSequence]) -> int:
            width = group_of(same[0]).run_width
            count = largest_power(min(len(same), self._buckets.rows[-1] // width) or 1)
            while count > 1 and not (
                fits(same[:count]) and self._is_ready(same[:count])
            ):
                count //= 2
            return count

        return batches(searches, self._alike, most=most)

    def step(
        self, searches: Sequence[EngineSequence], kv: KVCache
    ) -> tuple[KVCache, list[BeamLaunch]]:
        """Feeds beams' tokens and chooses the next; `kv` is donated.

        Args:
            searches: a batch. Where candidates are judged, which are then those of one
                search, it chooses among them first.
            kv: the KV array.
        """
        sequence, group = searches[0], group_of(searches[0])
        weights, run = self._programs.weights, group.run
        if group.judges is None:
            groups = [group_of(one) for one in searches]
            kv, runs, steps = self._run(groups, "step", self._operands(searches, kv))
            for one, after in zip(searches, runs, strict=True):
                group_of(one).run = after
            launched = zip(searches, steps, strict=True)
            return kv, [self._launched(*each) for each in launched]
        rules, judgement = group.rules, group.judgement
        assert judgement is not None
        if sequence.num_launched > sequence.limit:
            step = self._run([group], "end_judged", (rules, run, judgement))
        else:
            pages = self._tables.pages(searches)
            operands = weights, kv, rules, run, pages, judgement
            kv, group.run, step = self._run([group], "judged_step", operands)
        return kv, [self._launched(sequence, step)]

    def _operands(
        self, searches: Sequence[EngineSequence], kv: KVCache
    ) -> tuple[Any, ...]:
        """Of a step of searches that nobody judges."""
        rules, runs = _rules_and_runs(searches)
        return self._programs.weights, kv, rules, runs, self._tables.pages(searches)

    def _alike(self, sequence: EngineSequence) -> Alike | None:
        # The definition gathers the pages of all searches of a call, which on a GPU
        # nobody has planned for.
        if device.platform() == "gpu" and not self._tables.prompts.are_planned:
            return None
        return alike(group_of(sequence), self._tables.width(len(sequence.pages)))

    def _is_ready(self, searches: Sequence[EngineSequence]) -> bool:
        """No step compiles what was to be prepared; what was not, is compiled then."""
        groups = [group_of(one) for one in searches]
        if not any(one.request.programs for one in searches):
            return True
        beams, tables = self._programs.beams, self._tables
        pages = tables.shapes(*tables.sizes(searches))
        key = beams.key("step", (None, None, *_rules_and_runs(searches), pages))
        if any(key in group.programs for group in groups):
            return True
        if (program := beams.kept(key)) is None:
            return False
        groups[0].programs[key] = program  # others may replace it until it is called
        return True

    def prepared(
        self, request: Request, kv: KVCache, *, only_kept: bool
    ) -> Prepared | None:
        """The programs of a search's steps, compiled; any thread may ask.

        Args:
            request: of the search.
            kv: the KV array, or one that was.
            only_kept: nothing is compiled; `None` where something would have to be.
        """
        of_search = Prepared()
        is_judged = request.grammar is not None
        begin: Kind = "begin_judged" if is_judged else "begin"
        operands = self._first_operands(request, is_judged=is_judged)
        program = self._program(begin, operands, only_kept=only_kept)
        if program is None:
            return None
        of_search[program.key] = program
        fixed = self._programs.weights, _shapes(kv)
        rules, run = operands[2], program.results[0]
        wanted = list[tuple[Kind, tuple[Any, ...]]]()
        for size in self._together(request, (rules, run), of_search):
            for pages in self._page_shapes_of(request, run, size):
                if is_judged:
                    judged = _judgement_shapes(run, self._num_words)
                    wanted.append(("judged_step", (*fixed, rules, run, pages, *judged)))
                else:
                    several = (rules,) * size, (run,) * size
                    wanted.append(("step", (*fixed, *several, pages)))
        if is_judged:
            judged = _judgement_shapes(run, self._num_words)
            wanted.append(("end_judged", (rules, run, *judged)))
        for kind, operands in wanted:
            program = self._program(kind, operands, only_kept=only_kept)
            if program is None:
                return None
            of_search[program.key] = program
        return of_search

    def _together(
        self, request: Request, state: Any, of_search: Prepared
    ) -> Iterator[int]:
        """How many searches like this one may take steps in one call: powers of two.

        As many as are prepared and live; those that come later prepare for more.
        """
        yield 1
        beams = request.limited_beams
        if request.grammar is not None or beams.num_beam_groups > 1:
            return
        width = self._tables.width(self._layout.pages_for(len(request.prompt)))
        num_alike = self._live.add(kind_of(state, width), of_search)
        rows = smallest_fitting(self._buckets.rows, beams.group_width)
        count = 2
        while count < 2 * num_alike and count * rows <= self._buckets.rows[-1]:
            yield count
            count *= 2

    def _first_operands(self, request: Request, *, is_judged: bool) -> tuple[Any, ...]:
        """Shapes of what a search begins with, and its state."""
        state, shape = self._state(request), jax.ShapeDtypeStruct
        logits = shape((1, self._config.embedding.vocab_size), np.float32)
        places = shape((request.limited_beams.num_beam_groups,), np.int32)
        operands = logits, places, state.rules, state.progress
        if is_judged:
            return *operands, shape((1, self._num_words), np.uint32)
        return operands

    def _page_shapes_of(
        self, request: Request, run: BeamRun, num_searches: int
    ) -> Iterator[BeamPages]:
        """Of all steps of searches like one: tables grow with the beams."""
        groups, width = run.tokens.shape
        prompt = self._tables.width(self._layout.pages_for(len(request.prompt)))
        longest = self._tables.width(self._layout.pages_for(request.max_tokens))
        for own in self._buckets.widths:
            if own <= longest:
                yield self._tables.shapes(groups * num_searches, width, prompt, own)

    def _program(
        self, kind: Kind, operands: tuple[Any, ...], *, only_kept: bool
    ) -> BeamProgram | None:
        beams = self._programs.beams
        key = beams.key(kind, operands)
        return beams.kept(key) if only_kept else beams.compiled(kind, key, operands)

    def _run(
        self, groups: Sequence[Group], kind: Kind, operands: tuple[Any, ...]
    ) -> Any:
        """Runs a program, which is compiled now if none of the groups has it."""
        beams = self._programs.beams
        key = beams.key(kind, operands)
        having = (one.programs[key] for one in groups if key in one.programs)
        program = next(having, None)
        if program is None:
            program = groups[0].programs[key] = beams.compiled(kind, key, operands)
        return program.call(*operands)

    def _state(self, request: Request) -> BeamState:
        """Of a search before its first tokens."""
        params = request.limited_beams
        pages = self._tables.width(self._layout.pages_for(request.max_tokens))
        return init_beams(
            [params] * params.num_beam_groups,
            [request.prompt] * params.num_beam_groups,
            width=smallest_fitting(self._buckets.rows, params.group_width),
            limit=pages * self._layout.page_size,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            plan=plan_of([request.params]),
        )

    @property
    def _num_words(self) -> int:
        return num_words(self._config.embedding.vocab_size)

    def _launched(self, sequence: EngineSequence, step: BeamStep) -> BeamLaunch:
        copy_ahead(step)
        ends = stop_ids(sequence.request.params, self._config.eos_token_ids)
        return BeamLaunch(sequence, step, ends)


def _rules_and_runs(searches: Sequence[EngineSequence]) -> tuple[Any, Any]:
    groups = [group_of(one) for one in searches]
    return tuple(one.rules for one in groups), tuple(one.run for one in groups)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), tree)


def _judgement_shapes(run: BeamRun, num_words: int) -> tuple[Any, ...]:
    assert run.candidates is not None
    shape: tuple[int, ...] = run.candidates.sums.shape
    ends = jax.ShapeDtypeStruct(shape, np.bool_)
    allowed = jax.ShapeDtypeStruct((*shape, num_words), np.uint32)
    return (jax.eval_shape(Judgement, ends, allowed),)


@functools.cache
def _warn_once() -> None:
    if device.platform() == "gpu":
        logger.warning(
            "beam search computes attention by its definition: to this model positions "
            "matter (a window, or ALiBi), and no kernel for a GPU follows its beams; "
            "temporaries are not in the memory plan"
        )
