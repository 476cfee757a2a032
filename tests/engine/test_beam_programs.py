"""Beam searches whose programs are compiled before an engine has them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from fdjax.engine import beam_programs
from fdjax.engine.beam_programs import BeamFunction, BeamPrograms
from fdjax.engine.engine import Engine
from fdjax.engine.request import Found, Increment, Request
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.structured import StructuredOutputs
from fdjax.kernels.paged import KVCache
from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.table import Worth
from tests.support.engines import shallow_model, tiny_engine
from tests.support.matchers import Places

SEARCH = BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)
PROMPT = [5, 6, 7]
KINDS = [
    SEARCH,
    BeamSearchParams(beam_width=4, num_beam_groups=2, diversity_penalty=1.0),
    BeamSearchParams(beam_width=2, logprobs=3, max_tokens=40, ignore_eos=True),
    BeamSearchParams(
        beam_width=2, structured_outputs=StructuredOutputs(json_object=True)
    ),
]


def request_of(engine: Engine, params: BeamSearchParams) -> Request:
    grammar = None
    if params.structured_outputs is not None:
        places = [[5, 6, 7], [8, 9], [10, 11, 12]]
        grammar = Places(places, engine.config.embedding.vocab_size)
    return engine.request(0, PROMPT, params, grammar)


def found(engine: Engine, request: Request) -> list[list[int]]:
    sequence, last = engine.add(request), None
    while engine.has_work:
        last = dict(engine.step()).get(sequence, last)
    assert isinstance(last, Found)
    return [one.token_ids for one in last.hypotheses]


@pytest.fixture(params=["each", "once"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Whose programs for prompts are compiled; prompts are read by each beam, or once.

    So little would be saved here that they never are.
    """
    if request.param == "once":
        monkeypatch.setattr(table.PART, "find", lambda: Worth(prompt_bytes=0))
    one = tiny_engine(shallow_model(), page_size=8, max_num_seqs=4)
    found(one, request_of(one, BeamSearchParams(beam_width=1, max_tokens=1)))
    return one


@pytest.mark.parametrize("params", KINDS, ids=["beams", "groups", "logprobs", "judged"])
def test_no_step_of_a_prepared_search_compiles(
    engine: Engine, params: BeamSearchParams
):
    request = request_of(engine, params)
    assert engine.prepare(request, only_kept=True) is None
    prepared = engine.prepare(request, only_kept=False)
    assert prepared is not None
    with jax.no_tracing(True):
        tokens = found(engine, prepared)
        again = engine.prepare(request, only_kept=True)
        assert again is not None
        assert found(engine, again) == tokens
    alone = tiny_engine(shallow_model(), page_size=8, max_num_seqs=4)
    assert found(alone, request_of(alone, params)) == tokens


def test_searches_are_compiled_with_the_options_given(
    monkeypatch: pytest.MonkeyPatch,
):
    compiled, seen = jax.stages.Lowered.compile, list[Any]()

    def noted(lowered: jax.stages.Lowered, options: Any = None) -> jax.stages.Compiled:
        seen.append(options)
        return compiled(lowered, options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    options = {"xla_gpu_autotune_level": 0}
    beams = BeamPrograms({"begin": BeamFunction(jax.numpy.negative)}, options)
    numbers = (jax.ShapeDtypeStruct((2,), jax.numpy.float32),)
    beams.compiled("begin", beams.key("begin", numbers), numbers)
    assert seen == [options]


def test_a_prepared_search_keeps_what_others_replace(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """There are more kinds of searches than a server has memory for."""
    monkeypatch.setattr(beam_programs, "_MAX_KEPT", 3)
    first = engine.prepare(request_of(engine, SEARCH), only_kept=False)
    other = BeamSearchParams(beam_width=2, max_tokens=12)
    assert engine.prepare(request_of(engine, other), only_kept=False) is not None
    assert first is not None
    with jax.no_tracing(True):
        found(engine, first)
    again = engine.prepare(request_of(engine, SEARCH), only_kept=True)
    assert again is not None, "the first one has them"
    del first, again
    assert engine.prepare(request_of(engine, other), only_kept=False) is not None
    assert engine.prepare(request_of(engine, SEARCH), only_kept=True) is None


def test_searches_that_are_alike_take_steps_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """As far as programs are prepared; each finds what it finds by itself."""
    seen: list[int] = []
    step = engine.executor.beams.step

    def counted(searches: Sequence[EngineSequence], kv: KVCache) -> Any:
        seen.append(len(searches))
        return step(searches, kv)

    monkeypatch.setattr(engine.executor.beams, "step", counted)
    pair = dataclasses.replace(SEARCH, beam_width=2, n=2)
    prompts = ([5, 6, 7], [9, 8, 7, 6, 5, 4], [3, 3])
    alone = [_all_found(engine, [engine.request(0, p, pair)])[0] for p in prompts]
    assert set(seen) == {1}
    seen.clear()
    requests = [engine.request(0, prompt, pair) for prompt in prompts]
    assert _all_found(engine, requests) == alone
    assert 2 in seen, "four rows have room for two"
    seen.clear()
    first, second = (engine.prepare(one, only_kept=False) for one in requests[:2])
    assert first is not None and second is not None
    with jax.no_tracing(True):
        assert _all_found(engine, [first, second]) == alone[:2]
    assert 2 in seen, "what was compiled before is kept"


def test_prepared_searches_wait_for_no_batch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """They go alone until its programs are there, whichever of them has these."""
    monkeypatch.setattr(beam_programs, "_MAX_KEPT", 2)
    pair = dataclasses.replace(SEARCH, beam_width=2, n=2, logprobs=1)
    requests = [engine.request(0, prompt, pair) for prompt in ([5, 6], [7, 8])]
    expected = [_all_found(engine, [one])[0] for one in requests]
    first, second = (engine.prepare(one, only_kept=False) for one in requests)
    assert first is not None and second is not None
    batches = engine.executor.beams.batches
    seen: list[int] = []

    def counted(*searches: Any, **options: Any) -> Any:
        found = batches(*searches, **options)
        seen.extend(map(len, found))
        return found

    monkeypatch.setattr(engine.executor.beams, "batches", counted)
    with jax.no_tracing(True):
        assert _all_found(engine, [first, second]) == expected
    assert set(seen) == {1}
    seen.clear()
    assert engine.prepare_batches(second)
    assert not engine.prepare_batches(second), "two live, and no more"
    with jax.no_tracing(True):
        assert _all_found(engine, [first, second]) == expected
    assert 2 in seen


def test_a_search_that_is_judged_goes_alone(engine: Engine):
    prepared = engine.prepare(request_of(engine, KINDS[3]), only_kept=False)
    others = [engine.prepare(request_of(engine, KINDS[1]), only_kept=False)]
    assert prepared is not None and others[0] is not None
    assert not engine.prepare_batches(prepared)
    assert not engine.prepare_batches(others[0])


def _all_found(engine: Engine, requests: Sequence[Request]) -> list[list[list[int]]]:
    sequences = [engine.add(request) for request in requests]
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        last.update(engine.step())
    every = [last[sequence] for sequence in sequences]
    return [
        [one.token_ids for one in found.hypotheses]
        for found in every
        if isinstance(found, Found)
    ]
