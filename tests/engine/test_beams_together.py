"""Searches of odd widths at a time, put back or not, find what the definition does."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.request import Found, Tried
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_fields import MAX_BEAMS
from fdjax.generate.beam_params import BeamSearchParams
from tests.support.beam_definition import Logprobs, Search, model_logprobs
from tests.support.beam_grammars import Follows, follows, is_end
from tests.support.beam_models import TOLERANCE
from tests.support.engines import PROMPTS, shallow_model, tiny_engine
from tests.support.soak import is_idle

ENDS = tuple(range(4, 120, 7))
# Of prompts of one token, of whole pages, and of a page that is begun.
SEARCHES = (
    BeamSearchParams(beam_width=7, n=1, max_tokens=9, early_stopping="never"),
    BeamSearchParams(beam_width=3, n=2, max_tokens=9, stop_token_ids=ENDS),
    BeamSearchParams(beam_width=5, max_tokens=9, length_penalty=-1, min_tokens=2),
    BeamSearchParams(beam_width=5, n=3, max_tokens=8, stop_token_ids=ENDS[:3]),
    BeamSearchParams(beam_width=1, max_tokens=9, early_stopping=True),
)


@pytest.mark.parametrize("num_pages", [64, 18], ids=["room", "put back"])
def test_tokens_and_scores_are_those_of_the_definition(num_pages: int):
    engine = tiny_engine(
        shallow_model(), page_size=4, max_num_seqs=16, num_pages=num_pages
    )
    asked = [
        (PROMPTS[place % 3], dataclasses.replace(params, ignore_eos=True))
        for place, params in enumerate(SEARCHES)
    ]
    check(engine, asked)
    assert bool(engine.scheduler.num_preemptions) == (num_pages < 64)


def test_as_many_beams_as_a_search_has_by_default_find_what_the_definition_does():
    params = BeamSearchParams(
        beam_width=64, max_tokens=5, stop_token_ids=ENDS[:3], ignore_eos=True
    )
    engine = tiny_engine(shallow_model(), page_size=4, max_num_seqs=64, num_pages=160)
    check(engine, [(PROMPTS[1], params)])


def test_where_fewer_tokens_may_come_than_there_are_beams_there_is_less_to_find():
    """The other beams' sums are -1e9, and their scores a quarter of that."""
    params = BeamSearchParams(
        beam_width=3, max_tokens=4, ignore_eos=True, allowed_token_ids=[88]
    )
    engine = tiny_engine(shallow_model(), page_size=4)
    (found,) = check(engine, [(PROMPTS[1], params)])
    assert [one.token_ids for one in found.hypotheses] == [[88] * 4]


def test_more_beams_than_a_search_has_by_default_find_what_the_definition_does():
    """Three hundred, which are as many as all searches may have."""
    params = BeamSearchParams(
        beam_width=300, max_tokens=3, stop_token_ids=ENDS[:3], ignore_eos=True
    )
    engine = tiny_engine(
        shallow_model(),
        page_size=4,
        max_num_seqs=320,
        num_pages=320,
        max_beam_width=MAX_BEAMS,
        max_num_beams=300,
    )
    check(engine, [(PROMPTS[1], params)])


def test_diverse_ones_that_are_put_back_find_what_the_definition_does():
    """The groups' penalties begin anew with them."""
    engine = tiny_engine(shallow_model(), page_size=4, max_num_seqs=16, num_pages=18)
    params = BeamSearchParams(
        beam_width=4, num_beam_groups=2, max_tokens=9, ignore_eos=True
    )
    asked = [
        (prompt, dataclasses.replace(params, diversity_penalty=penalty))
        for prompt, penalty in zip(PROMPTS, (0.5, 3.0, 1.5), strict=True)
    ]
    check(engine, asked)
    assert engine.scheduler.num_preemptions > 0


def test_judged_ones_that_are_put_back_find_what_the_definition_does():
    """Their judges forget what they had judged."""
    engine = tiny_engine(shallow_model(), page_size=4, max_num_seqs=16, num_pages=18)
    params = BeamSearchParams(beam_width=4, max_tokens=9, ignore_eos=True)
    asked = [
        (PROMPTS[place], dataclasses.replace(params, early_stopping=early))
        for place, early in enumerate(("never", False, True))
    ]
    grammar = Follows(is_end, engine.config.embedding.vocab_size)
    check(engine, asked, grammar)
    assert engine.scheduler.num_preemptions > 0


@functools.cache
def _logprobs() -> Logprobs:
    return model_logprobs(shallow_model(), room=32)


def check(
    engine: Engine,
    asked: Sequence[tuple[list[int], BeamSearchParams]],
    grammar: Follows | None = None,
) -> list[Found]:
    """All searches at a time find what the definition does with each alone."""
    sequences = [engine.add(engine.request(0, *one, grammar)) for one in asked]
    last: dict[EngineSequence, Found] = {}
    while engine.has_work:
        for sequence, increment in engine.step():
            if isinstance(increment, Tried):
                continue
            assert isinstance(increment, Found)
            last[sequence] = increment
    assert is_idle(engine)
    for sequence, (prompt, params) in zip(sequences, asked, strict=True):
        search = Search(params, prompt, _logprobs(), may=_may(params))
        if grammar is not None:
            search = dataclasses.replace(
                search, ended=lambda tokens: is_end(tokens[-1]), may=follows
            )
        expected = search.found()
        found = last[sequence].hypotheses
        assert [one.token_ids for one in found] == [tokens for tokens, _ in expected]
        scores = [score for _, score in expected]
        assert [one.score for one in found] == pytest.approx(scores, rel=TOLERANCE)
    return [last[sequence] for sequence in sequences]


def _may(params: BeamSearchParams) -> Callable[[list[int]], bool]:
    allowed = params.allowed_token_ids
    return lambda tokens: allowed is None or tokens[-1] in allowed
