"""`BeamExecutor`: the calls that search with beams, over the KV array of an engine."""

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fdjax import device
from fdjax.engine.beam_programs import BeamProgram, Key, Kind, Prepared
from fdjax.engine.beam_prompts import BeamPrompts
from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.group import Group
from fdjax.engine.page_table import page_table
from fdjax.engine.programs import Programs
from fdjax.engine.request import Found, Increment, Request
from fdjax.engine.results import copy_ahead, ending
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_loop import BeamPages, BeamRun, BeamStep, Judgement
from fdjax.generate.beam_state import BeamState, init_beams, stop_ids
from fdjax.generate.masks import num_words
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
        sequence: the search.
        step: what it says.
        stop_ids: tokens that end its beams.
    """

    sequence: EngineSequence
    step: BeamStep
    stop_ids: set[int]

    steps = timed = None

    @property
    def is_ready(self) -> bool:
        """It is there."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.step))

    def wait(self) -> None:
        """Waits for it."""
        jax.block_until_ready(self.step)

    def read(self) -> Iterator[tuple[EngineSequence, Increment]]:
        """Waits for it; something comes of the last one, or of all if asked for."""
        step, sequence = jax.device_get(self.step), self.sequence
        if sequence.ended or sequence.group is None:
            return
        group, index = sequence.group, sequence.request.index
        group.take(step, self.stop_ids)
        codes = {FinishReason(code) for code in step.finished.tolist()}
        if FinishReason.NON_FINITE in codes:
            yield sequence, ending(sequence.request, FinishReason.NON_FINITE)
        elif FinishReason.RUNNING not in codes:
            found = group.found(step, self.stop_ids)
            tokens = found[0].token_ids if found else []
            reason = found[0].finish_reason if found else FinishReason.LENGTH
            logprobs = found[0].logprobs if found else None
            if group.params.logprobs is not None:
                logprobs = logprobs or []
            yield sequence, Found(index, tokens, logprobs, reason, hypotheses=found)
        elif group.params.stream_best and (best := group.best(step, self.stop_ids)):
            yield sequence, Found(index, [], None, None, hypotheses=best)


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
        self._prompts = BeamPrompts(config)

    def begin(
        self, sequence: EngineSequence, logits: Float[Array, "A V"], place: int
    ) -> BeamLaunch:
        """Chooses first tokens, from the logits of the prompt's last.

        Args:
            sequence: whose prompt is in the KV array.
            logits: of prompts.
            place: which of them is its.
        """
        group = sequence.group
        assert group is not None
        if not self._prompts.are_planned:
            _warn_once()
        state = self._state(sequence.request)
        group.rules = state.rules
        num_groups, width = state.progress.sums.shape
        lengths = [sequence.num_prompt] * num_groups
        group.prefixes = self._prompts.plan(lengths, width)
        places = np.full(group.params.num_beam_groups, place, np.int32)
        operands = logits, jax.device_put(places), state.rules, state.progress
        if group.judges is None:
            group.run, step = self._run(group, "begin", operands)
        else:
            allowed = jax.device_put(group.judges.first_mask()[None])
            judged = *operands, allowed
            group.run, step = self._run(group, "begin_judged", judged)
        return self._launched(sequence, step)

    def step(self, sequence: EngineSequence, kv: KVCache) -> tuple[KVCache, BeamLaunch]:
        """Feeds the beams' tokens and chooses the next; `kv` is donated.

        Where candidates are judged, it chooses among them first.
        """
        group = sequence.group
        assert group is not None
        assert group.rules is not None and group.run is not None
        weights, rules, run = self._programs.weights, group.rules, group.run
        if group.judges is None:
            operands = weights, kv, rules, run, self._pages(sequence, group)
            kv, group.run, step = self._run(group, "step", operands)
            return kv, self._launched(sequence, step)
        judgement = group.judgement
        assert judgement is not None
        if sequence.num_launched > sequence.limit:
            step = self._run(group, "end_judged", (rules, run, judgement))
        else:
            operands = weights, kv, rules, run, self._pages(sequence, group), judgement
            kv, group.run, step = self._run(group, "judged_step", operands)
        return kv, self._launched(sequence, step)

    def prepared(
        self, request: Request, kv: KVCache, *, only_kept: bool
    ) -> Prepared | None:
        """The programs of a search's steps, compiled; any thread may ask.

        Args:
            request: of the search.
            kv: the KV array, or one that was.
            only_kept: nothing is compiled; `None` where something would have to be.
        """
        of_search: dict[Key, BeamProgram] = {}
        is_judged = request.grammar is not None
        begin: Kind = "begin_judged" if is_judged else "begin"
        operands = self._first_operands(request, is_judged=is_judged)
        program = self._program(begin, operands, only_kept=only_kept)
        if program is None:
            return None
        of_search[program.key] = program
        fixed = self._programs.weights, _shapes(kv)
        rules, run = operands[2], program.results[0]
        judgement = _judgement_shapes(run, self._num_words) if is_judged else ()
        step: Kind = "judged_step" if is_judged else "step"
        wanted: list[tuple[Kind, tuple[Any, ...]]] = [
            (step, (*fixed, rules, run, pages, *judgement))
            for pages in self._page_shapes(request, run)
        ]
        if is_judged:
            wanted.append(("end_judged", (rules, run, *judgement)))
        for kind, operands in wanted:
            program = self._program(kind, operands, only_kept=only_kept)
            if program is None:
                return None
            of_search[program.key] = program
        return of_search

    def _first_operands(self, request: Request, *, is_judged: bool) -> tuple[Any, ...]:
        """Shapes of what a search begins with, and its state."""
        state, shape = self._state(request), jax.ShapeDtypeStruct
        logits = shape((1, self._config.embedding.vocab_size), np.float32)
        places = shape((request.limited_beams.num_beam_groups,), np.int32)
        operands = logits, places, state.rules, state.progress
        if is_judged:
            return *operands, shape((1, self._num_words), np.uint32)
        return operands

    def _page_shapes(self, request: Request, run: BeamRun) -> Iterator[BeamPages]:
        """Of all steps: tables grow with the beams."""
        groups, width = run.tokens.shape
        prompt = self._width(self._layout.pages_for(len(request.prompt)))
        prefixes = self._prompts.shapes(groups, width)
        longest = self._width(self._layout.pages_for(request.max_tokens))
        for own in self._buckets.widths:
            if own <= longest:
                shapes = [
                    jax.ShapeDtypeStruct(shape, np.int32)
                    for shape in ((groups, prompt), (groups,), (groups, width, own))
                ]
                yield jax.eval_shape(BeamPages, *shapes, prefixes)

    def _program(
        self, kind: Kind, operands: tuple[Any, ...], *, only_kept: bool
    ) -> BeamProgram | None:
        beams = self._programs.beams
        key = beams.key(kind, operands)
        return beams.kept(key) if only_kept else beams.compiled(kind, key, operands)

    def _run(self, group: Group, kind: Kind, operands: tuple[Any, ...]) -> Any:
        """Runs a program, which is compiled now if nobody has prepared it."""
        beams = self._programs.beams
        key = beams.key(kind, operands)
        program = group.programs.get(key)
        if program is None:
            program = group.programs[key] = beams.compiled(kind, key, operands)
        return program.call(*operands)

    def _state(self, request: Request) -> BeamState:
        """Of a search before its first tokens."""
        params = request.limited_beams
        pages = self._width(self._layout.pages_for(request.max_tokens))
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

    def _pages(self, sequence: EngineSequence, group: Group) -> BeamPages:
        """Rows of the beams that exist, each group's padded to the width of the run."""
        assert group.run is not None
        num_groups, width = group.run.tokens.shape
        absent, params = self._layout.num_pages, group.params
        prompt = page_table(
            [sequence.pages] * num_groups,
            num_rows=num_groups,
            width=self._width(len(sequence.pages)),
            num_pages=absent,
        )
        pages = group.segments.table(absent)
        own = page_table(
            pages,
            num_rows=params.beam_width,
            width=self._width(len(pages[0])),
            num_pages=absent,
        )
        own = own.reshape(num_groups, params.group_width, -1)
        padding = (0, width - params.group_width)
        own = np.pad(own, ((0, 0), padding, (0, 0)), constant_values=absent)
        lengths = np.full(num_groups, sequence.num_prompt, np.int32)
        prompt, lengths, own = jax.device_put((prompt, lengths, own))
        return BeamPages(prompt, lengths, own, group.prefixes)

    def _launched(self, sequence: EngineSequence, step: BeamStep) -> BeamLaunch:
        copy_ahead(step)
        ends = stop_ids(sequence.request.params, self._config.eos_token_ids)
        return BeamLaunch(sequence, step, ends)

    def _width(self, num_pages: int) -> int:
        return smallest_fitting(self._buckets.widths, num_pages)


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
