"""Tokens of a call: as many as a time allows, learnt from the calls before."""

from typing import Any

import pytest

from fdjax.engine.buckets import fine_ladder
from fdjax.engine.budget import TokenBudget
from fdjax.engine.policy import StepPolicy
from fdjax.errors import ConfigError
from tests.support.clock import Clock

SIZES = (16, 64, 256, 512, 1024, 2048)
FINE_SIZES = fine_ladder(16, 8192)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Device:
    """Takes some milliseconds for each call, some for each of its tokens; or more."""

    def __init__(
        self, clock: Clock, *, call_ms: float, token_ms: float, least_ms: float = 0.0
    ) -> None:
        self.clock = clock
        self.call_ms = call_ms
        self.token_ms = token_ms
        self.least_ms = least_ms

    def took_ms(self, tokens: int) -> float:
        return max(self.call_ms + self.token_ms * tokens, self.least_ms)

    def run(self, budget: TokenBudget, tokens: int, *, waited: bool = True) -> None:
        call = budget.launched(tokens)
        self.clock.now += self.took_ms(tokens) / 1e3
        budget.read(call, waited=waited)


def settled(budget: TokenBudget, device: Device) -> int:
    for _ in range(60):
        device.run(budget, budget.tokens(4))
    return budget.tokens(4)


@pytest.mark.parametrize(
    ("max_itl_ms", "expected"),
    [(10.5, 512), (10.0, 256), (5.5, 64), (100.0, 2048), (1.0, 64)],
)
def test_a_call_takes_no_longer_than_it_may(
    clock: Clock, max_itl_ms: float, expected: int
):
    """5 ms, and 0.01 ms a token; 64 are the fewest that leave prompts any room."""
    device = Device(clock, call_ms=5.0, token_ms=0.01)
    budget = TokenBudget(SIZES, max_itl_ms, clock)
    assert budget.tokens(4) == 64, "nothing is known yet"
    assert settled(budget, device) == expected


@pytest.mark.parametrize("max_itl_ms", [15.0, 30.0, 60.0])
def test_no_call_is_much_larger_than_those_that_were_timed(
    clock: Clock, max_itl_ms: float
):
    """Small ones all take 4 ms, as reading the weights does, and tell no slope."""
    device = Device(clock, call_ms=1.0, token_ms=0.0213, least_ms=4.0)
    budget = TokenBudget(FINE_SIZES, max_itl_ms, clock)
    for _ in range(3):  # a long prompt, and then many short ones
        largest = 64
        for _ in range(40):
            tokens = budget.tokens(4)
            assert tokens <= 2 * largest
            assert device.took_ms(tokens) <= 2 * max_itl_ms
            device.run(budget, tokens)
            largest = max(tokens, largest)
        assert 0.8 * max_itl_ms < device.took_ms(budget.tokens(4)) <= max_itl_ms
        for _ in range(150):
            device.run(budget, 64)


def test_where_nobody_decodes_nobody_waits(clock: Clock):
    budget = TokenBudget(SIZES, 1.0, clock)
    assert budget.tokens(0) == 2048
    assert TokenBudget(SIZES, None, clock).tokens(100) == 2048


def test_prompts_go_on_however_many_decode(clock: Clock):
    budget = TokenBudget(SIZES, 1.0, clock)
    assert [budget.tokens(count) for count in (60, 250, 2047)] == [256, 512, 2048]


def test_a_device_that_becomes_slower_is_believed(clock: Clock):
    device = Device(clock, call_ms=5.0, token_ms=0.01)
    budget = TokenBudget(SIZES, 16.0, clock)
    assert settled(budget, device) == 1024
    device.token_ms = 0.02
    settled(budget, device)
    assert settled(budget, device) == 512


def test_what_nobody_waited_for_tells_nothing(clock: Clock):
    device = Device(clock, call_ms=5.0, token_ms=0.01)
    budget = TokenBudget(SIZES, 16.0, clock)
    expected = settled(budget, device)
    for _ in range(9):
        device.run(budget, 2048, waited=False)
    device.clock.now += 100.0  # the host came late, and does not know since when
    budget.read(budget.launched(16), waited=True)
    assert budget.tokens(4) == expected


def test_calls_ahead_are_timed_from_the_end_of_the_one_before(clock: Clock):
    budget = TokenBudget(SIZES, 16.0, clock)
    both = [budget.launched(256) for _ in range(2)]
    for call in both:
        clock.now += 0.008
        budget.read(call, waited=True)
    assert budget.tokens(4) == 512


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), "30"])
def test_a_limit_that_is_none_is_refused(limit: Any):
    with pytest.raises(ConfigError, match="max_itl_ms is"):
        StepPolicy(max_itl_ms=limit)


@pytest.mark.parametrize("value", ["no", "yes", 1, 0, 1.0])
@pytest.mark.parametrize(
    ("field", "name"),
    [("mixed", "mixed_steps"), ("shared_reads", "shared_prefix_reads")],
)
def test_a_switch_that_is_no_boolean_is_refused(field: str, name: str, value: Any):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; use True or False"):
        StepPolicy(**{field: value})


def test_calls_of_one_step_are_timed_together(clock: Clock):
    """5 ms each, and 0.01 ms a token: a target for one is too short for both."""
    budget = TokenBudget(SIZES, 12.0, clock)
    for _ in range(40):
        tokens = budget.tokens(4)
        first = budget.launched(tokens, goes_on=True)
        both = budget.launched(16, behind=first)
        assert both.tokens == tokens + 16
        for call, size in ((first, tokens), (both, 16)):
            clock.now += 5e-3 + 1e-5 * size
            budget.read(call, waited=True)
    assert budget.tokens(4) == 64
