"""No program is made that would overwrite more than is kept free for it."""

import pathlib
import typing
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import pytest

from fdjax import PoolingParams
from fdjax.engine import beam_programs, warm_up
from fdjax.engine.ahead import Lower
from fdjax.engine.borrowing import Borrowing, BorrowingCall
from fdjax.engine.engine import Engine
from fdjax.engine.lent_pages import borrowing_of
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Request
from fdjax.engine.sleeping import Sleeping
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import make_engine
from fdjax.serve.setup import Settings
from tests.support import h200

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
BUDGET = 125 * 2**30
GREEDY = SamplingParams(temperature=0.0)
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=1)


class Collecting(Exception):
    """Ends a start when all is lowered: there are no weights."""


def lowered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> int:
    """Traces and lowers a start's programs, before its weights have come."""
    count = 0

    def lower(lowerings: Sequence[Lower | None], _: int) -> Iterator[int]:
        nonlocal count
        for index, one in enumerate(lowerings):
            if one is not None:
                one()
                count += 1
            yield index + 1

    monkeypatch.setattr(warm_up, "compiled", lower)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(Sleeping, "take", lambda *_, wait=False: wait and never())
    with pytest.raises(Collecting):
        engine.warm_up([SCORED, PoolingParams()], weights=Future())
    return count


def never() -> bool:
    raise Collecting


def engine_of(borrowing: Borrowing | None = None) -> Engine:
    """Of a model without weights, so that it sleeps."""
    sizes: dict[str, Any] = {"max_num_seqs": 64, "max_model_len": 256}
    settings = Settings.of(CONFIGS / "llama3.2-1b.json", dtype="bfloat16", **sizes)
    model = Decoder(settings.config, jnp.bfloat16)
    return make_engine(
        settings, model, settings.memory_plan(BUDGET), borrowing=borrowing
    )


def test_a_start_traces_all_programs_with_what_is_kept_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    h200.pretend(monkeypatch, tmp_path)
    engine = engine_of()
    assert lowered(engine, monkeypatch) > len(engine.buckets.prefills)


def kept_less(kind: BorrowingCall, num_pages: int) -> Engine:
    """Keeps so many pages less than programs of this kind overwrite, or none."""
    engine = engine_of()
    lent = borrowing_of(engine.config, engine.plan.layout, engine.buckets, shares=False)

    class Less:
        def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
            pages = lent.pages(call, num_tokens)
            return max(0, pages - num_pages) if call == kind else pages

    return engine_of(Less())


@pytest.mark.parametrize("kind", ["extend", "decode", "pool", "score"])
def test_a_start_fails_where_less_is_kept_than_a_program_overwrites(
    kind: BorrowingCall, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """By one page, of one kind of call."""
    h200.pretend(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"tokens overwrites \d+ bytes at the KV"):
        lowered(kept_less(kind, 1), monkeypatch)


def prepared_search(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, judged: bool
) -> int:
    """Traces and lowers the programs of a search's steps; how many there are."""
    monkeypatch.setattr(beam_programs, "_KEPT", OrderedDict())
    monkeypatch.setattr(beam_programs, "_HELD", WeakValueDictionary())
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: None)
    beams = BeamSearchParams(beam_width=4, max_tokens=8)
    grammar = typing.cast(Grammar, object()) if judged else None
    request = Request(0, (5,), GREEDY, 8, grammar, beams)
    executor = engine.executor
    made = executor.beams.preparation.prepared(
        request, executor.progress.kv, only_kept=False
    )
    assert made is not None
    return len(made)


@pytest.mark.parametrize("judged", [False, True])
def test_a_search_is_refused_where_less_is_kept_than_its_steps_overwrite(
    judged: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """By all: it is counted for the longest prompts, and this one is short."""
    h200.pretend(monkeypatch, tmp_path)
    assert prepared_search(engine_of(), monkeypatch, judged=judged) == 2 + judged
    with pytest.raises(ValueError, match=r"4 tokens overwrites \d+ bytes at the KV"):
        prepared_search(kept_less("beams", 10**6), monkeypatch, judged=judged)
