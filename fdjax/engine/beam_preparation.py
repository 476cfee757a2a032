"""`BeamPreparation`: programs of beam searches, compiled before they are needed."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fdjax.engine.beam_batches import LiveSearches, kind_of
from fdjax.engine.beam_programs import BeamProgram, Kind, Prepared
from fdjax.engine.beam_tables import BeamTables
from fdjax.engine.buckets import Buckets
from fdjax.engine.programs import Programs
from fdjax.engine.request import Request
from fdjax.generate.beam_run import BeamPages, BeamRun, Judgement
from fdjax.generate.beam_state import BeamState, init_beams
from fdjax.generate.masks import num_words
from fdjax.generate.packed import Packed
from fdjax.generate.plan import plan_of
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig

type _Wanted = tuple[Kind, tuple[Any, ...]]


class BeamPreparation:
    """Knows the shapes of a search's steps before it begins; any thread may ask.

    Args:
        config: of the model.
        programs: its programs.
        tables: of searches.
        layout: of the KV array.
        buckets: shapes; a search's width is padded to a number of rows.
    """

    def __init__(
        self,
        config: ModelConfig,
        programs: Programs,
        tables: BeamTables,
        layout: KVLayout,
        buckets: Buckets,
    ) -> None:
        self._config = config
        self._programs = programs
        self._tables = tables
        self._layout = layout
        self._buckets = buckets
        self._live = LiveSearches()

    def state(self, request: Request) -> BeamState:
        """Of a search before its first tokens."""
        params = request.limited_beams
        return init_beams(
            [params] * params.num_beam_groups,
            [request.prompt] * params.num_beam_groups,
            width=self._buckets.group_rows(params.num_beam_groups, params.group_width),
            limit=self._table_width(request.max_tokens) * self._layout.page_size,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            plan=plan_of([request.params]),
        )

    def prepared(
        self, request: Request, kv: KVCache, *, only_kept: bool
    ) -> Prepared | None:
        """The programs of a search's steps by itself, compiled.

        Args:
            request: of the search.
            kv: the KV array, or one that was.
            only_kept: nothing is compiled; `None` where something would have to be.
        """
        begin = self._begin(request)
        program = self._program(*begin, only_kept=only_kept)
        if program is None:
            return None
        of_search = Prepared({program.key: program})
        rules, run, _ = program.results
        for wanted in self._steps(request, kv, rules, run):
            program = self._program(*wanted, only_kept=only_kept)
            if program is None:
                return None
            of_search[program.key] = program
        if request.goes_in_batches:
            width = self._table_width(len(request.prompt))
            self._live.add(kind_of((rules, run), width), of_search)
        return of_search

    def batch_sizes(self, request: Request) -> Iterator[int]:
        """How many searches may take steps with a prepared one: powers of two.

        As many as are like it and live, rounded up, and have room in a batch.
        """
        if request.programs is None or not request.goes_in_batches:
            return
        num_alike = self._live.num_alike(request.programs)
        rows = self._buckets.beam_rows(1, request.limited_beams.group_width)
        count = 2
        while count < 2 * num_alike and count * rows <= self._buckets.rows[-1]:
            yield count
            count *= 2

    def prepare_batch(self, request: Request, kv: KVCache, count: int) -> bool:
        """Gives a prepared search the programs of steps of so many like it.

        Returns:
            Whether one had to be compiled.
        """
        assert request.programs is not None
        kind, operands = self._begin(request)
        beams = self._programs.beams
        begin = beams.compiled(kind, beams.key(kind, operands), operands)
        (rules, run, _), has_compiled = begin.results, False
        for pages in self._pages(request, run, count):
            several = (rules,) * count, (run,) * count
            operands = self._programs.weights, _shapes(kv), *several, pages
            key = beams.key("step", operands)
            program = beams.kept(key)
            if program is None:
                program, has_compiled = beams.compiled("step", key, operands), True
            request.programs[key] = program
        return has_compiled

    def _begin(self, request: Request) -> _Wanted:
        """What a search begins with, and its state; the logits are stand-ins."""
        state, shape = self.state(request), jax.ShapeDtypeStruct
        logits = shape((1, self._config.embedding.vocab_size), np.float32)
        places = shape((request.limited_beams.num_beam_groups,), np.int32)
        operands = logits, places, state.rules, state.progress
        if request.grammar is None:
            return "begin", operands
        return "begin_judged", (*operands, shape((1, self._num_words), np.uint32))

    def _steps(
        self, request: Request, kv: KVCache, rules: Any, run: Packed[BeamRun]
    ) -> Iterator[_Wanted]:
        """All after the first."""
        fixed = self._programs.weights, _shapes(kv)
        if request.grammar is None:
            for pages in self._pages(request, run, 1):
                yield "step", (*fixed, (rules,), (run,), pages)
            return
        judgement = _judgement_shapes(run, self._num_words)
        for pages in self._pages(request, run, 1):
            yield "judged_step", (*fixed, rules, run, pages, judgement)
        yield "end_judged", (rules, run, judgement)

    def _pages(
        self, request: Request, run: Packed[BeamRun], count: int
    ) -> Iterator[BeamPages]:
        """Of all steps of so many searches: tables grow with the beams."""
        groups, width = run.shapes.tokens.shape
        prompt = self._table_width(len(request.prompt))
        longest = self._table_width(request.max_tokens)
        for own in self._buckets.widths:
            if own <= longest:
                yield self._tables.shapes(count * groups, width, prompt, own)

    def _program(
        self, kind: Kind, operands: tuple[Any, ...], *, only_kept: bool
    ) -> BeamProgram | None:
        beams = self._programs.beams
        key = beams.key(kind, operands)
        return beams.kept(key) if only_kept else beams.compiled(kind, key, operands)

    def _table_width(self, num_tokens: int) -> int:
        return self._buckets.width(self._layout.pages_for(num_tokens))

    @property
    def _num_words(self) -> int:
        return num_words(self._config.embedding.vocab_size)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), tree)


def _judgement_shapes(run: Packed[BeamRun], num_words: int) -> Judgement:
    candidates = run.shapes.candidates
    assert candidates is not None
    ends = jax.ShapeDtypeStruct(candidates.sums.shape, np.bool_)
    beams: tuple[int, ...] = run.shapes.progress.sums.shape
    allowed = jax.ShapeDtypeStruct((*beams, num_words), np.uint32)
    return jax.eval_shape(Judgement, ends, allowed)
