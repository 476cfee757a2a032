"""Steps are timed from another thread, and those that compile are not."""

import time

import jax
import jax.numpy as jnp

from fdjax.engine.pipeline import LAUNCHES_AHEAD
from fdjax.engine.step_clock import StepClock


def test_the_age_of_the_step_under_way():
    clock = StepClock()
    assert clock.age_s == 0.0
    with clock.step():
        time.sleep(0.01)
        first = clock.age_s
        assert first >= 0.01
        time.sleep(0.01)
        assert clock.age_s >= first + 0.01
    assert clock.age_s == 0.0


def test_what_compiles_does_not_count_nor_does_its_first_run():
    clock, x = StepClock(), jnp.arange(3.0)
    jitted = jax.jit(lambda x: jnp.sin(x) * 2)
    with clock.step():
        time.sleep(0.01)
        jitted(x)
        time.sleep(0.01)
        assert clock.age_s == 0.0
    for _ in range(LAUNCHES_AHEAD):
        with clock.step():
            jitted(x)
            time.sleep(0.01)
            assert clock.age_s == 0.0
    with clock.step():
        jitted(x)
        time.sleep(0.01)
        assert clock.age_s >= 0.01


def test_a_step_is_timed_again_after_one_that_failed():
    clock = StepClock()
    try:
        with clock.step():
            raise FloatingPointError
    except FloatingPointError:
        pass
    assert clock.age_s == 0.0
