"""The collector comes less often inside, and as before afterwards."""

import gc
import itertools

import jax
import pytest

from fdjax.garbage import (
    NEW_OBJECTS,
    TRACED_OBJECTS,
    old_objects_apart,
    seldom_collected,
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


def test_what_others_have_set_apart_stays_apart():
    """One object is looked for: others may end meanwhile, in another thread."""
    mine = [[]]
    assert is_looked_through(mine)
    gc.freeze()
    with old_objects_apart():
        assert gc.get_threshold()[0] == TRACED_OBJECTS
    assert not is_looked_through(mine)


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
