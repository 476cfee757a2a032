"""Beam searches whose programs are compiled before an engine has them."""

import jax
import pytest

from fdjax.engine import beam_programs
from fdjax.engine.engine import Engine
from fdjax.engine.request import Found, Request
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.structured import StructuredOutputs
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


@pytest.fixture
def engine() -> Engine:
    """Whose programs for prompts are compiled."""
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


def test_a_prepared_search_keeps_what_others_replace(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """There are more kinds of searches than a server has memory for."""
    monkeypatch.setattr(beam_programs, "_MAX_KEPT", 3)
    first = engine.prepare(request_of(engine, SEARCH), only_kept=False)
    other = BeamSearchParams(beam_width=2, max_tokens=12)
    assert engine.prepare(request_of(engine, other), only_kept=False) is not None
    assert first is not None
    assert engine.prepare(request_of(engine, SEARCH), only_kept=True) is None
    with jax.no_tracing(True):
        found(engine, first)
