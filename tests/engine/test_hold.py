"""How long the next launch waits for what arrives: the device has work for longer."""

import math

import pytest

from benchmarks.simulated_device import SAMPLED, Clock, Running
from fdjax.engine.budget import TokenBudget
from fdjax.engine.hold import Hold
from fdjax.engine.origin import Origin
from fdjax.engine.results import AwaitedTokens
from fdjax.generate.params import SamplingParams
from tests.support.engines import tiny_engine

SIZES = (16, 256, 1024)


class Device:
    """Takes 10 ms for each call, and 0.1 ms for each of its tokens."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.budget = TokenBudget(SIZES, None, self.clock)
        self.hold = Hold(self.budget)

    def launch(self, tokens: int, *, took_s: float = math.inf) -> Running:
        """A call that ends after a time; never, if it is not given."""
        timed, end_s = self.budget.launched(tokens), self.clock.now + took_s
        return Running(SAMPLED, (), timed=timed, end_s=end_s, clock=self.clock)

    def run(self, tokens: int, *, waited: bool = True) -> None:
        launch = self.launch(tokens)
        self.clock.now += 0.01 + 1e-4 * tokens
        self.budget.read(launch.timed, waited=waited)

    def learnt(self) -> "Device":
        for tokens in (*SIZES, *SIZES):
            self.run(tokens)
        return self


def test_it_waits_for_most_of_a_call():
    device = Device().learnt()
    launch = device.launch(1024)
    whole_ms = 10 + 0.1 * 1024
    assert 1e3 * device.hold.seconds([launch]) == pytest.approx(0.85 * whole_ms - 2)
    device.clock.now += 0.05
    assert 1e3 * device.hold.seconds([launch]) == pytest.approx(0.85 * whole_ms - 52)
    device.clock.now += 0.05
    assert device.hold.seconds([launch]) == 0.0


def test_the_host_needs_its_time():
    device = Device().learnt()
    launch = device.launch(1024)
    before = device.hold.seconds([launch])
    device.hold.launched(0.02)
    device.hold.launched(0.01)  # longer ones are remembered
    assert before - device.hold.seconds([launch]) == pytest.approx(1.5 * 0.02, rel=0.06)


def test_it_does_not_wait_where_it_does_not_know():
    device = Device()
    assert device.hold.seconds([]) == 0.0
    assert device.hold.seconds([device.launch(1024)]) == 0.0, "nothing is known"
    device.learnt()
    launch = device.launch(1024)
    assert device.hold.seconds([launch, launch]) == 0.0, "two are under way"
    assert device.hold.seconds([Running(SAMPLED, (), end_s=math.inf)]) == 0.0, (
        "of decode steps"
    )
    assert (
        device.hold.seconds([AwaitedTokens(SAMPLED, (), timed=launch.timed)]) == 0.0
    ), "ended"
    device.run(256, waited=False)
    launch = device.launch(1024)
    assert device.hold.seconds([launch]) == 0.0, "it began some time before"


def held(device: Device, tokens: int, took_s: float) -> float:
    """Runs a call as a server does that holds the next one; how long it was held."""
    launch = device.launch(tokens, took_s=took_s)
    clock, began_s = device.clock, device.clock.now
    while (spare_s := device.hold.seconds([launch])) > 0:
        clock.now += min(spare_s + 1e-6, 1e-3)
    held_s, waited = clock.now - began_s, not launch.is_ready
    clock.now = max(clock.now, launch.end_s)
    device.budget.read(launch.timed, waited=waited)
    return held_s


def test_what_is_taken_to_be_too_long_is_learnt():
    """The device becomes twice as fast: nobody waits for its calls any more."""
    device = Device().learnt()
    assert device.hold.seconds([device.launch(1024)]) > 0.05
    for tokens in [1024, 256] * 30:
        held(device, tokens, (0.01 + 1e-4 * tokens) / 2)
    gaps = [held(device, 1024, 0.0562) - 0.0562 for _ in range(3)]
    assert all(-0.02 < gap < 0 for gap in gaps)


def test_smaller_calls_than_all_before_are_not_known():
    device = Device()
    for _ in range(5):
        device.run(1024)
    assert device.hold.seconds([device.launch(16)]) == 0.0
    assert device.hold.seconds([device.launch(1024)]) > 0.05


def test_it_does_not_wait_where_others_wait_for_a_row(monkeypatch: pytest.MonkeyPatch):
    engine = tiny_engine(max_num_seqs=1)
    monkeypatch.setattr(Hold, "seconds", lambda *_: 1.0)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    engine.add(engine.request(0, [5, 6, 7], params), Origin())
    engine.step()
    assert engine.spare_s == 1.0
    engine.add(engine.request(1, [5, 6, 7], params), Origin())
    assert engine.spare_s == 0.0
