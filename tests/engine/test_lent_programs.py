"""An engine's own programs, traced for an H200, overwrite only what is kept free.

What is kept is worked out from shapes alone (`StepCalls`); here it is held against the
functions that programs are made of, with the operands that an engine gives them, for
every number of tokens and of rows that it has programs for.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.engine.beam_tables import BeamTables
from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.buckets import SCORED_TOKENS, Buckets
from fdjax.engine.lent_pages import LentPages, borrowing_of
from fdjax.engine.shared_reads import SharedReads
from fdjax.generate.beam_loop import beam_steps, begin_beams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_state import init_beams
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import plan_of
from fdjax.generate.pooled_states import pool_tokens
from fdjax.generate.progress import GenerationProgress, decode_rows
from fdjax.generate.prompt_scores import score_tokens
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens, extend_rows
from fdjax.generate.sampling_state import SamplingRules, SamplingState, init_state
from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program.memory import Blocks, places_in
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.memory.kv import KVLayout
from fdjax.models.decoder import Decoder
from fdjax.notation import Array
from fdjax.serve.loading import buckets_of
from fdjax.serve.setup import Settings
from tests.support import h200

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
BUDGET = 125 * 2**30
GREEDY = SamplingParams(temperature=0.0)
# Groups of 4, 4 with few key/value heads, 1, 2 and windows, 1 and other layers.
MODELS = [
    ("llama3-8b", 256),
    ("llama3-8b", 48),
    ("llama3-8b", 1),
    ("llama3.2-1b", 256),
    ("qwen1.5-7b", 256),
    ("llama2-7b", 17),
    ("gemma2-9b", 256),
    ("gpt-j-6b", 64),
]

type Trace = Callable[[Decoder], Any]
type Call = tuple[BorrowingCall, int, Trace]
"""What a call is to the host, its tokens, and what traces its program."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """What an engine over a lent array has, but for weights and memory."""

    model: Decoder
    layout: KVLayout
    buckets: Buckets
    lent: LentPages
    shared: SharedReads | None

    @staticmethod
    def of(name: str, num_rows: int) -> "Planned":
        sizes: dict[str, Any] = {"max_num_seqs": num_rows, "max_model_len": 2048}
        settings = Settings.of(CONFIGS / f"{name}.json", dtype="bfloat16", **sizes)
        config, plan = settings.config, settings.memory_plan(BUDGET)
        buckets, layout = buckets_of(settings, plan), plan.layout
        shared = SharedReads(config, layout) if SharedReads.suit(config) else None
        lent = borrowing_of(config, layout, buckets, shares=shared is not None)
        assert isinstance(lent, LentPages)
        return Planned(Decoder(config, jnp.bfloat16), layout, buckets, lent, shared)

    @property
    def num_rows(self) -> int:
        return self.buckets.rows[-1]

    @functools.cached_property
    def sampling(self) -> SamplingState:
        """Shapes of what is kept of all rows."""
        count = self.num_rows
        made = functools.partial(
            init_state,
            [GREEDY] * count,
            [()] * count,
            plan=plan_of([GREEDY]),
            vocab_size=self.model.config.embedding.vocab_size,
            eos_token_ids=(),
            default_seeds=[0] * count,
            num_rows=count,
        )
        return jax.eval_shape(made)

    def state(self) -> tuple[SamplingRules, GenerationProgress]:
        rows, table = ints(self.num_rows), self.table(self.num_rows)
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.sampling)
        kv = self.layout.allocate()
        progress = GenerationProgress(kv, rows, rows, state.progress, table=table)
        return state.rules, progress

    def table(self, num_rows: int) -> Array:
        return ints(num_rows, self.buckets.widths[-1])


def ints(*shape: int) -> Array:
    return jnp.zeros(shape, jnp.int32)


def pages(num_rows: int, width: int) -> RowPages:
    return RowPages(ints(3, num_rows), ints(num_rows), width)


def extends(of: Planned) -> Iterator[Call]:
    def trace(model: Decoder, *, tokens: int) -> Any:
        _, prompts = of.buckets.call_shape(tokens, 1)
        rows, table = ints(of.num_rows), pages(of.num_rows, of.buckets.widths[-1])
        call = RowTokens(ints(tokens), rows, rows, ints(prompts), rows > 0, table)
        return extend_rows(model, of.state()[1], call, mixed=True)

    for tokens in of.buckets.prefills:
        yield "extend", tokens, functools.partial(trace, tokens=tokens)


def decodes(of: Planned) -> Iterator[Call]:
    def trace(
        model: Decoder, *, rows: int, width: int, prefixes: SharedPrefixes | None
    ) -> Any:
        given = (*of.state(), pages(rows, width), ints(rows), prefixes)
        return decode_rows(model, *given, plan=plan_of([GREEDY]), num_steps=1)

    for rows in of.buckets.rows:
        shapes: list[tuple[int, SharedPrefixes | None]] = [
            (width, None) for width in of.buckets.decode_widths(rows)
        ]
        if of.shared is not None and rows > 1:  # one shares with nobody
            shapes.append((of.buckets.widths[-1], of.shared.none(rows)))
        for width, prefixes in shapes:
            sizes: dict[str, Any] = {"rows": rows, "width": width}
            yield "decode", rows, functools.partial(trace, **sizes, prefixes=prefixes)


def pooled(of: Planned) -> Iterator[Call]:
    def trace(model: Decoder, *, tokens: int) -> Any:
        rows = ints(of.buckets.prefill_rows)
        given = ints(tokens), rows, of.table(len(rows)), rows
        return pool_tokens(model, of.layout.allocate(), *given)

    for tokens in of.buckets.pooled:
        yield "pool", tokens, functools.partial(trace, tokens=tokens)


def scored(of: Planned) -> Iterator[Call]:
    def trace(model: Decoder) -> Any:
        tokens, one = ints(SCORED_TOKENS), ints(1)
        given = tokens, tokens, one, of.table(1), one
        return score_tokens(model, of.layout.allocate(), *given)

    yield "score", SCORED_TOKENS, trace


def searches(of: Planned) -> Iterator[Call]:
    """Steps of a search, of several alike, and of one whose groups are diverse."""
    tables = BeamTables(of.model.config, of.layout, of.buckets)

    def begun(groups: int, width: int) -> Any:
        """Rules and run of one search after its first tokens."""
        params = BeamSearchParams(beam_width=width, max_tokens=8)
        vocab_size = of.model.config.embedding.vocab_size
        state = init_beams(
            [params] * groups,
            [(5,)] * groups,
            width=width,
            limit=of.layout.page_size,
            vocab_size=vocab_size,
            eos_token_ids=(),
            plan=plan_of([GREEDY]),
        )
        logits = jnp.zeros((1, vocab_size))
        rules, run, _ = begin_beams(logits, ints(groups), state.rules, state.progress)
        return rules, run

    def trace(
        model: Decoder, *, count: int, groups: int, width: int, wide: tuple[int, int]
    ) -> Any:
        rules, run = begun(groups, width)
        shapes = tables.shapes(count * groups, width, *wide)
        pages = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
        given = (rules,) * count, (run,) * count, pages
        return beam_steps(model, of.layout.allocate(), *given)

    ends = of.buckets.widths[0], of.buckets.widths[-1]
    for count, groups, width in _searched(of):
        for wide in itertools.product(ends, ends):
            sizes: dict[str, Any] = {"count": count, "groups": groups, "width": width}
            tokens = count * groups * width
            yield "beams", tokens, functools.partial(trace, **sizes, wide=wide)


def _searched(of: Planned) -> Iterator[tuple[int, int, int]]:
    """Searches of a step, groups of each, and beams of each group: padded."""
    for rows in of.buckets.rows:
        yield 1, 1, rows
        if 4 * rows <= of.num_rows:
            yield 4, 1, rows
    if of.num_rows >= 15:
        yield 1, 3, of.buckets.group_rows(3, 5)


@pytest.fixture
def first_overwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Callable[[Trace, Decoder], int]:
    """The first byte of the array that a program overwrites on an H200."""
    h200.pretend(monkeypatch, tmp_path)
    seen: list[int] = []

    def seen_places(kv: KVCache, blocks: Blocks) -> tuple[int, ...]:
        places = places_in(kv, blocks)
        seen.append(places[0])
        return places

    monkeypatch.setattr(layer_program, "places_in", seen_places)

    def of(trace: Trace, model: Decoder) -> int:
        seen.clear()
        jax.eval_shape(trace, model)
        assert seen, "nothing is lent to it"
        return min(seen)

    return of


KINDS = [extends, decodes, pooled, scored, searches]
# Of searches they have what the first one has, and 10 s of programs each.
LIKE_OTHERS = [("llama3-8b", 48), ("llama3.2-1b", 256), ("qwen1.5-7b", 256)]


@pytest.mark.parametrize(
    ("name", "num_rows", "kind"),
    [
        (*model, kind)
        for model in MODELS
        for kind in KINDS
        if kind is not searches or model not in LIKE_OTHERS
    ],
)
def test_no_program_of_an_engine_overwrites_what_is_not_kept(
    name: str,
    num_rows: int,
    kind: Callable[[Planned], Iterator[Call]],
    first_overwritten: Callable[[Trace, Decoder], int],
):
    of = Planned.of(name, num_rows)
    for call, tokens, trace in kind(of):
        kept = of.lent.pages(call, tokens) * of.layout.page_bytes
        first = first_overwritten(trace, of.model)
        assert of.layout.nbytes - first <= kept, (call, tokens)
