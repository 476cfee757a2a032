"""Steps of a launch: as many as a time allows, and the same tokens however many."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.pace import Pace, Steps
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from tests.support.clock import Clock
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.matchers import Places


@pytest.fixture
def clock() -> Clock:
    return Clock()


def launch(pace: Pace, clock: Clock, step_s: float, *, waited: bool = True) -> Steps:
    """A launch whose steps take some time each, and which is read at once."""
    steps = pace.launched(pace.steps, clock.now)
    clock.now += steps.count * step_s
    pace.read(steps, waited=waited)
    return steps


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [(0.001, 8), (0.005, 8), (0.0051, 7), (0.02, 2), (0.04, 1), (0.5, 1)],
)
def test_a_launch_takes_no_longer_than_it_may(
    clock: Clock, step_s: float, expected: int
):
    pace = Pace(8, 0.040001, clock)
    assert pace.steps == 1, "nothing is known yet"
    for _ in range(3):
        launch(pace, clock, step_s)
        assert pace.steps == expected


def test_one_slow_launch_is_soon_forgotten(clock: Clock):
    pace = Pace(8, 0.04, clock)
    for step_s, expected in ((0.001, 8), (0.1, 1), (0.001, 8)):
        launch(pace, clock, step_s)
        assert pace.steps == expected


def test_without_a_limit_all_launches_are_alike(clock: Clock):
    pace = Pace(8, math.inf, clock)
    assert pace.steps == 8
    launch(pace, clock, 100.0)
    assert pace.steps == 8


def test_launches_of_most_steps_have_their_own_program_where_that_is_by_count():
    pace = Pace(8, 0.04, is_by_count=True)
    assert [pace.has_own_program(count) for count in (1, 7, 8)] == [False, False, True]
    assert pace.counts == (8, 1)
    assert not any(Pace(8, 0.04).has_own_program(count) for count in (1, 8))
    one = Pace(1, is_by_count=True)
    assert not one.has_own_program(1), "it has no loop"
    assert one.counts == (1,)


def test_what_else_was_launched_is_not_the_steps_fault(clock: Clock):
    pace = Pace(8, 0.04, clock)
    launch(pace, clock, 0.001)
    pace.prefilled()
    launch(pace, clock, 10.0)
    assert pace.steps == 8
    launch(pace, clock, 10.0)
    assert pace.steps == 1


def test_a_host_that_comes_late_is_not_the_steps_fault(clock: Clock):
    """Fewer steps a launch would make it later still."""
    pace = Pace(8, 0.04, clock)
    launch(pace, clock, 10.0, waited=False)
    assert pace.steps == 8


def test_a_call_that_runs_its_steps_itself_is(clock: Clock):
    pace = Pace(8, 0.04, clock)
    steps = pace.launched(1, clock.now - 10.0)
    pace.read(steps, waited=False)
    assert pace.steps == 1


def test_launches_ahead_are_timed_from_the_one_before(clock: Clock):
    pace = Pace(8, 0.04, clock)
    both = [pace.launched(1, clock.now) for _ in range(2)]
    for steps in both:
        clock.now += 0.02
        pace.read(steps, waited=True)
    assert pace.steps == 2


def test_by_count_tokens_are_the_same_and_nothing_is_traced_after_warm_up():
    """Rows that end apart, and one that a grammar holds, which has a step a launch."""
    params = [replace(GREEDY, max_tokens=n) for n in (3, 8, 12)]
    of_each: list[list[list[int]]] = []
    for is_by_count in (False, True):
        engine = tiny_engine(shallow_model())
        engine.executor.pace.is_by_count = is_by_count
        engine.warm_up([GREEDY])
        held = Places([[5], [6, 7], [8]], engine.config.embedding.vocab_size)
        with jax.no_tracing(True):
            outputs = finished(engine, PROMPTS, params, [None] * 3)
            outputs += finished(engine, PROMPTS[:1], params[:1], [held])
        of_each.append(outputs)
    assert of_each[0] == of_each[1]


def finished(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    grammars: Sequence[Places | None],
) -> list[list[int]]:
    """Tokens of requests that come together."""
    each = zip(prompts, params, grammars, strict=True)
    sequences = [engine.add(engine.request(0, *one)) for one in each]
    made: dict[EngineSequence, list[int]] = {one: [] for one in sequences}
    while engine.has_work:
        for sequence, increment in engine.step():
            made[sequence] += increment.token_ids
    return [made[one] for one in sequences]


def sizes(engine: Engine, prompt: Sequence[int]) -> list[int]:
    """Tokens of each increment of one request."""
    engine.add(engine.request(0, prompt, GREEDY))
    made: list[int] = []
    while engine.has_work:
        made += [len(increment.token_ids) for _, increment in engine.step()]
    return [size for size in made if size]


def test_a_slow_model_streams_token_by_token(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
):
    """And a quick one eight at once; the tokens are the same."""
    engine = tiny_engine(max_launch_s=1000.0)
    expected = run(engine, PROMPTS)
    assert max(sizes(engine, PROMPTS[0])) == 8
    programs, decode = engine.executor.programs, engine.executor.programs.decode

    def slow(*operands: Any, **plan: Any) -> Any:
        clock.now += 0.02 * engine.executor.pace.steps
        # The call takes the time: nothing is left to wait for, however busy a machine.
        return jax.block_until_ready(decode(*operands, **plan))

    monkeypatch.setattr(programs, "decode", slow)
    engine.executor.pace = Pace(8, 0.02, clock)
    assert run(engine, PROMPTS) == expected
    assert set(sizes(engine, PROMPTS[0])) == {1}
