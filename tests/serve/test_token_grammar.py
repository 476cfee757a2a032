"""Masks that take too long end their own request, and hold up no other."""

import threading
from typing import Any

import numpy as np
import pytest

from fdjax.generate.stopping import FinishReason
from fdjax.serve import token_grammar
from fdjax.serve.lanes import Lanes
from fdjax.serve.token_grammar import EndBits, TokenGrammar, TokenMatcher

BITS = EndBits(text=np.full(1, 2**32 - 1, np.uint32), ends=np.zeros(1, np.uint32))
ALL = np.full(1, 2**32 - 1, np.uint32)


QUICK, SLOW = "fdjax-test-quick", "fdjax-test-slow"


class Processor(threading.local):
    """Its time is that of each thread by itself, and passes where something works."""

    now_s = 0.0

    def thread_time(self) -> float:
        return self.now_s


PROCESSOR = Processor()


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collector, and nothing else that a thread is charged for, ends an output."""
    monkeypatch.setattr(token_grammar, "time", PROCESSOR)


def work(seconds: float) -> None:
    PROCESSOR.now_s += seconds


class Slow:
    """Stands for llguidance: a mask, or a token, takes seconds of processor."""

    def __init__(self, seconds: float, *, held: float = 0.0) -> None:
        self.seconds = seconds
        self.held = held
        self.threads: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def deep_copy(self) -> "Slow":
        return self

    def consume_token(self, token_id: int) -> None:
        self.threads.append(threading.current_thread().name)
        assert self.free.wait(30)
        work(self.held)

    def compute_bitmask(self) -> bytes:
        work(self.seconds)
        return ALL.tobytes()

    def is_error(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False


@pytest.fixture
def lanes() -> Lanes:
    return Lanes("fdjax-test", quick=1, slow=1)


def matcher_of(slow: Any, lanes: Lanes) -> TokenMatcher:
    return TokenGrammar(slow, BITS, (ALL, FinishReason.RUNNING), lanes).matcher()


def test_quick_masks_may_go_on_for_ever(lanes: Lanes):
    matcher = matcher_of(Slow(0.0), lanes)
    for token in range(1000):
        matcher.advance(token)
    assert matcher.finish_reason == FinishReason.RUNNING


def test_slow_ones_end_when_their_time_is_spent(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(token_grammar, "_MAX_SECONDS", 0.05)
    matcher = matcher_of(Slow(0.02), lanes)
    reasons: list[FinishReason] = []
    while FinishReason.SLOW_GRAMMAR not in reasons and len(reasons) < 9:
        matcher.advance(1)
        reasons.append(matcher.finish_reason)
    # Of 0.02 seconds each, 0.005 are usual.
    assert reasons == [FinishReason.RUNNING] * 3 + [FinishReason.SLOW_GRAMMAR]


def test_what_holds_all_threads_has_less_time(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(token_grammar, "_MAX_HELD_SECONDS", 0.05)
    matcher = matcher_of(Slow(0.0, held=0.02), lanes)
    reasons: list[FinishReason] = []
    while FinishReason.SLOW_GRAMMAR not in reasons and len(reasons) < 9:
        matcher.advance(1)
        reasons.append(matcher.finish_reason)
    assert reasons == [FinishReason.RUNNING] * 2 + [FinishReason.SLOW_GRAMMAR]


def test_quick_masks_do_not_wait_for_slow_ones(lanes: Lanes):
    slow, quick = Slow(0.01), Slow(0.0)
    one, other = matcher_of(slow, lanes), matcher_of(quick, lanes)
    one.advance(1)  # nobody knows yet that it is slow
    assert one.finish_reason == FinishReason.RUNNING
    slow.free.clear()
    one.advance(1)
    for _ in range(3):
        other.advance(1)
        assert other.finish_reason == FinishReason.RUNNING
    assert not one.is_ready
    slow.free.set()
    assert one.finish_reason == FinishReason.RUNNING
    assert [name.split("_")[0] for name in slow.threads] == [QUICK, SLOW]
    assert {name.split("_")[0] for name in quick.threads} == {QUICK}
