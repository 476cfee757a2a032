"""Beam searches in an engine: nobody's harm. What they find: `test_beam_families`."""

import dataclasses
import functools
import random
from collections.abc import Sequence

import jax
import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.pipeline import Pipeline
from fdjax.engine.request import Found, Hypothesis, Increment, Tried
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.stopping import FinishReason
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.soak import WIDTHS, is_idle, soak

SEARCH = BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)
PAGE = 8


def engine_of(**options: int) -> Engine:
    """Of one layer: what is tested here is who holds what."""
    return tiny_engine(
        shallow_model(), page_size=PAGE, **({"max_num_seqs": 4} | options)
    )


def ask(
    engine: Engine, prompt: Sequence[int], params: BeamSearchParams = SEARCH
) -> EngineSequence:
    return engine.add(engine.request(0, prompt, params))


def finish(engine: Engine) -> dict[EngineSequence, Increment]:
    """Steps until nothing is left to do; the last increment of each sequence."""
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        last.update(engine.step())
    return last


def tokens_of(found: Increment) -> list[list[int]]:
    assert isinstance(found, Found)
    return [one.token_ids for one in found.hypotheses]


def alone(prompt: Sequence[int], params: BeamSearchParams = SEARCH) -> list[Hypothesis]:
    """What a search finds in an engine of its own."""
    engine = engine_of()
    sequence = ask(engine, prompt, params)
    found = finish(engine)[sequence]
    assert isinstance(found, Found) and is_idle(engine)
    return found.hypotheses


@pytest.fixture(scope="module")
def expected() -> list[list[list[int]]]:
    return [[one.token_ids for one in alone(prompt)] for prompt in PROMPTS]


def test_searches_and_ordinary_requests_do_not_see_each_other(
    expected: list[list[list[int]]],
):
    engine = engine_of(max_num_seqs=8)
    others = run(engine, PROMPTS, GREEDY)
    sequences = [ask(engine, prompt) for prompt in PROMPTS[:2]]
    beside = [engine.add(engine.request(0, prompt, GREEDY)) for prompt in PROMPTS]
    outputs: dict[EngineSequence, list[int]] = {sequence: [] for sequence in beside}
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        for sequence, increment in engine.step():
            last[sequence] = increment
            if sequence in outputs:
                outputs[sequence] += increment.token_ids
    assert [tokens_of(last[sequence]) for sequence in sequences] == expected[:2]
    assert list(outputs.values()) == others
    assert is_idle(engine)


def test_a_search_waits_until_all_of_its_rows_are_free(
    expected: list[list[list[int]]],
):
    engine = engine_of()
    sequences = [ask(engine, prompt) for prompt in PROMPTS]
    while engine.has_work:
        running = engine.scheduler.running
        assert sum(sequence.request.num_rows for sequence in running) <= 4
        for sequence, increment in engine.step():
            if not isinstance(increment, Tried):
                assert tokens_of(increment) == expected[sequences.index(sequence)]
    assert is_idle(engine)


def peak(engine: Engine, sequence: EngineSequence) -> tuple[int, Increment]:
    """The most pages that are held while a search runs to its end, and the end."""
    most, pool = 0, engine.scheduler.pool
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        last.update(engine.step())
        most = max(most, pool.num_pages - pool.num_free)
    assert is_idle(engine)
    return most, last[sequence]


def bound(prompt: Sequence[int], params: BeamSearchParams, page_size: int) -> int:
    """Pages of the prompt once, and of a beam's own tokens but the last: Eq. (3)."""
    own = -(-((params.max_tokens or 0) - 1) // page_size)
    return -(-len(prompt) // page_size) + params.beam_width * own


def test_pages_are_those_of_the_papers_equation():
    """No page is dead before the last step."""
    engine = engine_of()
    sequence = ask(engine, PROMPTS[2])
    assert peak(engine, sequence)[0] == bound(PROMPTS[2], SEARCH, PAGE)


def test_pages_that_no_beam_reads_are_given_back_before_the_end():
    """And the search finds the same; what it holds at most is far below Eq. (3)."""
    params = dataclasses.replace(SEARCH, beam_width=4, n=4, max_tokens=20)
    found = alone(PROMPTS[2], params)
    engine = tiny_engine(shallow_model(), page_size=2, max_model_len=64)
    sequence = ask(engine, PROMPTS[2], params)
    most, last = peak(engine, sequence)
    assert tokens_of(last) == [one.token_ids for one in found]
    assert engine.scheduler.beams.num_dead > 0
    assert most < 0.8 * bound(PROMPTS[2], params, 2)


def test_without_pages_a_search_is_put_back_whole_and_finds_the_same(
    expected: list[list[list[int]]],
):
    """Room for one search and a little: of two, one begins anew."""
    engine = engine_of(num_pages=10, max_num_seqs=6)
    sequences = [ask(engine, prompt) for prompt in PROMPTS[:2]]
    found = finish(engine)
    assert [tokens_of(found[sequence]) for sequence in sequences] == expected[:2]
    assert engine.scheduler.num_preemptions > 0
    assert is_idle(engine)


def test_a_search_for_whose_step_there_is_no_room_waits(
    expected: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
):
    """One that begins in a step has no part in the room that was made for it."""
    answers = iter([False, False, True, False])

    def has_room(*_: object) -> bool:
        return next(answers, True)

    monkeypatch.setattr(Pipeline, "_has_room", has_room)
    engine = engine_of()
    sequence = ask(engine, PROMPTS[0])
    assert tokens_of(finish(engine)[sequence]) == expected[0]
    assert next(answers, None) is None
    assert is_idle(engine)


def test_prefixes_are_shared_and_long_prompts_come_in_chunks():
    prompt = [*range(3, 23)]
    found = alone(prompt)
    engine = engine_of(max_batched_tokens=16, max_model_len=64)
    for hits in (0, 16):
        engine.scheduler.prefixes.num_cached_tokens = 0
        sequence = ask(engine, prompt)
        assert tokens_of(finish(engine)[sequence]) == [one.token_ids for one in found]
        assert engine.scheduler.prefixes.num_cached_tokens == hits
    assert is_idle(engine)


def test_pages_of_responses_are_found_by_nobody(engine_tokens: int = 12):
    engine = engine_of(max_model_len=64)
    sequence = ask(engine, PROMPTS[1])
    (best, *_) = tokens_of(finish(engine)[sequence])
    assert len(best) == engine_tokens
    whole = [*PROMPTS[1], *best]
    other = engine.add(engine.request(0, whole, GREEDY))
    finish(engine)
    assert other.ended and engine.scheduler.prefixes.num_cached_tokens == PAGE
    assert is_idle(engine)


@pytest.mark.parametrize("steps", range(6))
def test_a_search_that_is_aborted_gives_every_page_back(
    steps: int, expected: list[list[list[int]]]
):
    engine = engine_of()
    sequence = ask(engine, PROMPTS[0])
    for _ in range(steps):
        engine.step()
    engine.abort(sequence)
    assert is_idle(engine)
    after = ask(engine, PROMPTS[1])
    assert tokens_of(finish(engine)[after]) == expected[1]


def test_a_search_that_is_parked_begins_anew(expected: list[list[list[int]]]):
    engine = engine_of()
    sequence = ask(engine, PROMPTS[0])
    for _ in range(4):
        engine.step()
    engine.park(sequence)
    engine.step()
    assert not engine.has_work and is_idle(engine)
    engine.resume(sequence)
    assert tokens_of(finish(engine)[sequence]) == expected[0]


@pytest.mark.parametrize("num_pages", [40, 10], ids=["room", "put back"])
def test_the_tokens_of_all_beams_are_told_once_and_step_by_step(num_pages: int):
    """Of beams, not of padding; and a step that is computed again is no news."""
    engine = engine_of(num_pages=num_pages, max_num_seqs=6)
    params = dataclasses.replace(SEARCH, n=1, max_tokens=12)
    sequences = [ask(engine, prompt, params) for prompt in PROMPTS[:2]]
    told: dict[EngineSequence, list[int]] = {sequence: [] for sequence in sequences}
    while engine.has_work:
        for sequence, increment in engine.step():
            told[sequence].append(increment.num_made)
    steps = [params.beam_width] * 12
    assert list(told.values()) == [[*steps, 0]] * 2, "the last has what was found"
    assert bool(engine.scheduler.num_preemptions) == (num_pages == 10)


def test_a_search_that_was_parked_tells_what_it_has_not_told():
    engine, told = engine_of(), 0
    sequence = ask(engine, PROMPTS[0], dataclasses.replace(SEARCH, max_tokens=12))
    for _ in range(6):
        told += sum(increment.num_made for _, increment in engine.step())
    assert told > SEARCH.beam_width
    engine.park(sequence)
    engine.step()
    engine.resume(sequence)
    while engine.has_work:
        told += sum(increment.num_made for _, increment in engine.step())
    assert told == 12 * SEARCH.beam_width


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_every_search_finds_its_own(seed: int):
    """Few pages; searches of all widths and requests, aborted, parked and put back."""
    rng, engine = random.Random(seed), engine_of(num_pages=13, max_num_seqs=6)
    wanted: dict[EngineSequence, list[list[int]]] = {}
    parked: list[EngineSequence] = []
    last: dict[EngineSequence, Increment] = {}
    for _ in range(60):
        match rng.choice(["search", "ask", "abort", "park", "resume", "step", "step"]):
            case "search":
                place, width = rng.randrange(3), rng.choice((1, 2, 4))
                params = dataclasses.replace(SEARCH, beam_width=width, n=width)
                wanted[ask(engine, PROMPTS[place], params)] = _known(place, width)
            case "ask":
                engine.add(engine.request(0, rng.choice(PROMPTS), GREEDY))
            case "abort" if wanted:
                sequence = rng.choice([*wanted])
                engine.abort(sequence)
                if sequence not in last:
                    del wanted[sequence]
            case "park" if wanted:
                parked.append(rng.choice([*wanted]))
                engine.park(parked[-1])
            case "resume" if parked:
                engine.resume(parked.pop())
            case _:
                step = engine.step()
                last |= {s: one for s, one in step if not isinstance(one, Tried)}
    for sequence in parked:
        engine.resume(sequence)
    last |= finish(engine)
    assert {sequence: tokens_of(last[sequence]) for sequence in wanted} == wanted
    assert is_idle(engine)


def test_a_soak_of_mixed_widths_with_aborts_leaves_every_page_free():
    """`python -m tests.soak --beams` has thousands."""
    engine = engine_of(num_pages=11)
    done = soak(engine, num_requests=80, seed=1, asked=WIDTHS)
    assert min(done.num_aborted, done.num_searches) > 5
    assert engine.scheduler.beams.num_dead > 0
    assert is_idle(engine)
    assert list(done.differing(engine)) == []


@functools.cache
def _known(place: int, width: int) -> list[list[int]]:
    params = dataclasses.replace(SEARCH, beam_width=width, n=width)
    return [one.token_ids for one in alone(PROMPTS[place], params)]


def test_steps_after_the_first_search_of_a_shape_compile_nothing():
    engine = engine_of()
    ask(engine, PROMPTS[0])
    finish(engine)
    longer = dataclasses.replace(SEARCH, length_penalty=2.0, n=1, early_stopping=True)
    with jax.no_tracing(True):
        ask(engine, PROMPTS[1], longer)
        finish(engine)
    assert is_idle(engine)


def test_weights_that_are_no_numbers_end_a_search_with_an_error():
    model = shallow_model()
    broken = jax.tree.map(lambda x: x * float("nan"), model)
    engine = tiny_engine(broken, page_size=PAGE)
    sequence = ask(engine, PROMPTS[0])
    found = finish(engine)[sequence]
    assert found.finish_reason == FinishReason.NON_FINITE
    assert tokens_of(found) == []
    assert is_idle(engine)
