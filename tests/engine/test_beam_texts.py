"""Searches whose candidates are judged before they are chosen, diverse ones, scores."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Found, Hypothesis, Increment, Tried
from fdjax.engine.sequence import EngineSequence
from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.stopping import FinishReason
from tests.support.beam_definition import Logprobs, Search, model_logprobs
from tests.support.beam_grammars import Follows, Stops, follows, is_end
from tests.support.beam_models import TOLERANCE
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.matchers import Places
from tests.support.soak import is_idle

VOCAB_SIZE = shallow_model().config.embedding.vocab_size
SEARCH = BeamSearchParams(beam_width=3, max_tokens=7, ignore_eos=True)
PROMPT = PROMPTS[1]
PLACES = [range(10 * place, 10 * place + 10) for place in range(1, 6)]


@pytest.fixture(scope="module")
def logprobs() -> Logprobs:
    return model_logprobs(shallow_model(), room=32)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine(shallow_model(), page_size=4)


def ask(
    engine: Engine, params: BeamSearchParams = SEARCH, grammar: Grammar | None = None
) -> EngineSequence:
    return engine.add(engine.request(0, PROMPT, params, grammar))


def finish(engine: Engine) -> dict[EngineSequence, Increment]:
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        last.update(engine.step())
    assert is_idle(engine)
    return last


def hypotheses(increment: Increment) -> list[Hypothesis]:
    assert isinstance(increment, Found)
    return increment.hypotheses


def found_alone(engine: Engine, grammar: Grammar | None) -> list[Hypothesis]:
    sequence = ask(engine, SEARCH, grammar)
    return hypotheses(finish(engine)[sequence])


def assert_defined(found: list[Hypothesis], definition: Search) -> None:
    expected = definition.found()
    assert [one.token_ids for one in found] == [tokens for tokens, _ in expected]
    scores = [score for _, score in expected]
    assert [one.score for one in found] == pytest.approx(scores, rel=TOLERANCE)


def test_texts_that_end_take_no_place_of_beams_that_go_on(
    engine: Engine, logprobs: Logprobs
):
    sequence = ask(engine, SEARCH, Stops(is_end))
    found = hypotheses(finish(engine)[sequence])
    definition = Search(SEARCH, PROMPT, logprobs, ended=lambda t: is_end(t[-1]))
    assert_defined(found, definition)
    ended = [one for one in found if is_end(one.token_ids[-1])]
    assert ended and all(one.finish_reason == FinishReason.STOP for one in ended)


@pytest.mark.parametrize("stop_token_ids", [(), (1, 2, 3, 4, 6, 7)])
@pytest.mark.parametrize("beam_width", [1, 3, 4])
def test_each_beam_has_what_may_follow_itself(
    engine: Engine,
    logprobs: Logprobs,
    beam_width: int,
    stop_token_ids: tuple[int, ...],
):
    """Also where candidates that end, by text or token, stand between the others."""
    params = dataclasses.replace(
        SEARCH, beam_width=beam_width, n=beam_width, stop_token_ids=stop_token_ids
    )
    sequence = ask(engine, params, Follows(is_end, VOCAB_SIZE))
    found = hypotheses(finish(engine)[sequence])

    definition = Search(
        params, PROMPT, logprobs, ended=lambda t: is_end(t[-1]), may=follows
    )
    assert_defined(found, definition)


@pytest.mark.parametrize("slow", [False, True])
def test_what_a_form_forbids_has_no_probability(
    engine: Engine, logprobs: Logprobs, slow: bool
):
    """Of each place ten tokens; then it ends, before the limit."""
    grammar = Places(PLACES, VOCAB_SIZE, slow=slow)
    sequence = ask(engine, SEARCH, grammar)
    found = hypotheses(finish(engine)[sequence])

    def may(tokens: list[int]) -> bool:
        place = len(tokens) - 1
        return place < len(PLACES) and tokens[-1] in PLACES[place]

    definition = Search(
        SEARCH, PROMPT, logprobs, ended=lambda t: len(t) == len(PLACES), may=may
    )
    assert_defined(found, definition)
    assert [len(one.token_ids) for one in found] == [5, 5, 5]


def test_a_form_of_few_texts_has_no_more_of_them_than_there_are(engine: Engine):
    sequence = ask(engine, SEARCH, Places([[7], [8, 9]], VOCAB_SIZE))
    found = hypotheses(finish(engine)[sequence])
    assert sorted(one.token_ids for one in found) == [[7, 8], [7, 9]]


def test_the_limit_ends_what_is_not_complete(engine: Engine):
    params = dataclasses.replace(SEARCH, max_tokens=3)
    sequence = ask(engine, params, Places(PLACES, VOCAB_SIZE))
    found = hypotheses(finish(engine)[sequence])
    reasons = {one.finish_reason for one in found}
    assert reasons == {FinishReason.LENGTH} and len(found[0].token_ids) == 3


def test_a_form_that_is_too_slow_ends_the_search_with_that(engine: Engine):
    end = FinishReason.SLOW_GRAMMAR
    sequence = ask(engine, SEARCH, Places([[7], [8, 9]], VOCAB_SIZE, end=end))
    found = finish(engine)[sequence]
    assert (found.finish_reason, hypotheses(found)) == (end, [])


def test_judged_searches_and_others_change_nothing_of_each_other():
    engine = tiny_engine(shallow_model(), max_num_seqs=8)
    ordinary = run(engine, PROMPTS[:2], GREEDY)
    grammars = (None, Places(PLACES, VOCAB_SIZE), Stops(is_end))
    alone = [found_alone(engine, grammar) for grammar in grammars]
    # Room for two of the searches beside them.
    sequences = [ask(engine, SEARCH, grammar) for grammar in grammars]
    others = [engine.add(engine.request(0, one, GREEDY)) for one in PROMPTS[:2]]
    made: dict[EngineSequence, list[int]] = {sequence: [] for sequence in others}
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        for sequence, increment in engine.step():
            last[sequence] = increment
            if sequence in made:
                made[sequence] += increment.token_ids
    assert list(made.values()) == ordinary
    assert [hypotheses(last[sequence]) for sequence in sequences] == alone
    assert is_idle(engine)


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_an_aborted_or_parked_one_leaves_nothing(engine: Engine, steps: int):
    grammar = Places(PLACES, VOCAB_SIZE)
    expected = found_alone(engine, grammar)
    gone, parked = (ask(engine, SEARCH, grammar) for _ in range(2))
    for _ in range(steps):
        engine.step()
    engine.abort(gone)
    engine.park(parked)
    engine.step()
    engine.resume(parked)
    assert hypotheses(finish(engine)[parked]) == expected


def test_diverse_groups_are_those_of_the_definition(engine: Engine, logprobs: Logprobs):
    params = dataclasses.replace(
        SEARCH, beam_width=4, n=4, num_beam_groups=2, diversity_penalty=1.5
    )
    sequence = ask(engine, params)
    found = hypotheses(finish(engine)[sequence])
    assert_defined(found, Search(params, PROMPT, logprobs))


def test_log_probabilities_are_the_models_own(engine: Engine, logprobs: Logprobs):
    """Whatever biases and penalties make of them."""
    params = dataclasses.replace(
        SEARCH, logprobs=2, logit_bias={7: 3.0}, repetition_penalty=1.3
    )
    sequence = ask(engine, params)
    for one in hypotheses(finish(engine)[sequence]):
        assert one.logprobs is not None
        assert len(one.logprobs) == len(one.token_ids)
        for place, (token, told) in enumerate(
            zip(one.token_ids, one.logprobs, strict=True)
        ):
            row = logprobs([*PROMPT, *one.token_ids[:place]])
            assert told.logprob == pytest.approx(float(row[token]), rel=1e-4)
            best = np.argsort(-row, kind="stable")[:2].tolist()
            assert list(told.top) == best
    plain = ask(engine, dataclasses.replace(params, logprobs=None))
    assert [one.logprobs for one in hypotheses(finish(engine)[plain])] == [None] * 3


def test_judged_ones_have_log_probabilities_too(engine: Engine, logprobs: Logprobs):
    params = dataclasses.replace(SEARCH, logprobs=0)
    sequence = ask(engine, params, Places(PLACES, VOCAB_SIZE))
    for one in hypotheses(finish(engine)[sequence]):
        assert one.logprobs is not None
        sums = sum(entry.logprob for entry in one.logprobs)
        assert sums == pytest.approx(one.cumulative_logprob, rel=1e-4)


@pytest.mark.parametrize("form", [None, Places(PLACES, VOCAB_SIZE)])
def test_the_best_so_far_is_told_where_it_is_asked_for(engine: Engine, form: Any):
    params = dataclasses.replace(SEARCH, stream_best=True)
    sequence = ask(engine, params, form)
    told: list[Found] = []
    while engine.has_work:
        for one, increment in engine.step():
            assert one is sequence
            if not isinstance(increment, Tried):
                assert isinstance(increment, Found)
                told.append(increment)
    *before, last = told
    assert [one.token_ids for one in before] == [[] for _ in before]
    assert [len(one.hypotheses) for one in before] == [1] * len(before)
    lengths = [len(one.hypotheses[0].token_ids) for one in before]
    assert lengths[0] == 1 and lengths == sorted(lengths) and len(lengths) > 3
    assert before[0].hypotheses[0].finish_reason == FinishReason.RUNNING
    silent = ask(engine, SEARCH, form)
    assert hypotheses(finish(engine)[silent]) == last.hypotheses


def test_short_outputs_are_preferred_where_there_are_fewer_than_beams(engine: Engine):
    """What is not there has no length, and 0 to a power below 0 is no number."""
    params = dataclasses.replace(SEARCH, length_penalty=-1.0, stream_best=True)
    sequence = ask(engine, params, Places([[7], [8, 9]], VOCAB_SIZE))
    found = hypotheses(finish(engine)[sequence])
    assert sorted(one.token_ids for one in found) == [[7, 8], [7, 9]]
    for one in found:
        assert one.score == pytest.approx(one.cumulative_logprob * 2)


def test_stop_strings_without_a_text_are_refused(engine: Engine):
    params = dataclasses.replace(SEARCH, stop=["a", "b"])
    with pytest.raises(RequestError, match="stop has 2 strings, but there is no token"):
        engine.request(0, PROMPT, params)
