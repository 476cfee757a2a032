"""`benchmarks.launch_log`: which launches are late, and what came before them."""

import dataclasses
import gc
import time

import pytest

from benchmarks.launch_log import Launch, LaunchLog, late, summary
from fdjax.engine.engine import Engine
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine


def launched(begin_s: float, return_s: float, end_s: float) -> Launch:
    return Launch(begin_s, return_s, {"launching": 1.5}, {"rows": 3}, end_s)


# The second is there before the first has ended, the third half a second too late, and
# while the fourth was launched the third ended.
LAUNCHES = [
    launched(0.0, 0.1, 2.0),
    launched(1.0, 1.1, 3.0),
    launched(3.5, 3.6, 4.5),
    launched(4.4, 4.7, 6.0),
]


def test_a_launch_is_late_where_the_one_before_has_ended():
    found = late(LAUNCHES)
    assert [one.launch for one in found] == LAUNCHES[2:]
    assert [one.least_ms for one in found] == pytest.approx([500.0, 0.0])
    assert [one.most_ms for one in found] == pytest.approx([600.0, 200.0])
    assert found[0].shown == " 500.00 to 600.00 ms late: launching 1.5 ms; rows 3"


def test_what_it_comes_to():
    """The host had a second for the fourth, and has taken 1.7 from the second's end."""
    found = summary(LAUNCHES)
    assert (found["launches"], found["late"]) == (4, 2)
    assert found["waiting"] == [round(0.5 / 4.6, 5), round(0.8 / 4.6, 5)]
    assert found["host_ms"][-1] == pytest.approx(1700.0)
    assert summary(LAUNCHES[:1]) == {"launches": 1}
    unread = [dataclasses.replace(one, end_s=None) for one in LAUNCHES]
    assert (summary(unread)["late"], summary(unread)["host_ms"]) == (0, None)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Pages for less than two of the longest sequences."""
    return tiny_engine(shallow_model(), num_pages=6, steps_per_launch=2)


def test_all_launches_of_an_engine_are_noted(engine: Engine):
    params = dataclasses.replace(GREEDY, max_tokens=20)
    expected, began_s = run(engine, PROMPTS, params), time.perf_counter()
    before = engine.scheduler.num_preemptions
    with LaunchLog(engine) as log:
        assert run(engine, PROMPTS, params) == expected
    noted = log.between(began_s, time.perf_counter())
    assert noted == log.launches
    assert len(noted) > 10
    assert all(one.end_s and one.end_s >= one.begin_s for one in noted)
    put_back = sum(one.did.get("put back", 0) for one in noted)
    assert put_back == engine.scheduler.num_preemptions - before > 0
    parts = {name for one in noted for name in one.spent_ms}
    assert parts >= {"tokens", "between steps", "scheduling", "launching", "jax"}
    assert log.between(0.0, began_s) == []


def test_nothing_is_noted_afterwards(engine: Engine):
    callbacks, own = [*gc.callbacks], {*vars(engine.executor.programs)}
    with LaunchLog(engine) as log:
        assert gc.callbacks != callbacks
    run(engine, PROMPTS)
    assert log.launches == []
    assert gc.callbacks == callbacks
    assert {*vars(engine.executor.programs)} == own
