"""The collector comes less often inside, and as before afterwards."""

import gc
import itertools
from collections.abc import Generator

import jax
import pytest

from fdjax.garbage import (
    NEW_OBJECTS,
    SERVED_OBJECTS,
    TRACED_OBJECTS,
    old_objects_apart,
    seldom_collected,
    settle,
)
from tests.support.engines import tiny_engine


@pytest.fixture(autouse=True)
def as_in_a_new_process():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_waits_for_more_objects_and_then_no_longer():
    with pytest.raises(RuntimeError), seldom_collected():
        assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
        raise RuntimeError
    assert gc.get_threshold() == (700, 10, 10)


def test_one_that_waits_for_even_more_is_left_as_it_is():
    gc.set_threshold(2 * NEW_OBJECTS)
    with seldom_collected():
        assert gc.get_threshold()[0] == 2 * NEW_OBJECTS


def test_a_server_that_was_started_inside_keeps_its_own():
    with seldom_collected():
        gc.set_threshold(SERVED_OBJECTS)
    assert gc.get_threshold()[0] == SERVED_OBJECTS


def test_what_others_have_set_apart_stays_apart():
    """One object is looked for: others may end meanwhile, in another thread."""
    mine = [[]]
    assert is_looked_through(mine)
    gc.freeze()
    with old_objects_apart():
        assert gc.get_threshold()[0] == TRACED_OBJECTS
    assert not is_looked_through(mine)


@pytest.fixture
def settled() -> Generator[None]:
    """A process that is ready to serve, inside another that is not."""
    others = gc.get_freeze_count()  # of all tests
    settle()
    yield
    if not others:
        gc.unfreeze()


@pytest.mark.usefixtures("settled")
def test_steps_of_a_server_are_not_looked_through():
    """The objects of 256 rows die before there are enough to be looked through."""
    assert gc.get_threshold() == (SERVED_OBJECTS, 10, 10)
    before = gc.get_stats()
    for _ in range(20):
        step = [[row] for row in range(8 * 256)]
        assert len(step) == 2048
    assert gc.get_stats() == before


@pytest.mark.usefixtures("settled")
def test_a_server_looks_through_what_stays():
    before = gc.get_stats()[0]["collections"]
    kept = [[n] for n in range(SERVED_OBJECTS + 1)]
    assert len(kept) > SERVED_OBJECTS
    assert gc.get_stats()[0]["collections"] > before


def is_looked_through(wanted: object) -> bool:
    """By the collector."""
    return any(one is wanted for one in gc.get_objects())


def test_what_tracing_leaves_in_cycles_holds_no_arrays():
    """So the collector may wait, though an array may be most of a device's memory."""
    engine = tiny_engine()
    gc.collect()
    with old_objects_apart():
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            engine.warm_up()
            gc.collect()
            left = [*gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left
    found = itertools.chain(left, *map(gc.get_referents, left))
    assert not any(isinstance(one, jax.Array) for one in found)
