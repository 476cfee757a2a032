"""Whose work is next: counted, with work that takes time by the book."""

from dataclasses import dataclass

import pytest

from fdjax.serve.fair_order import FairOrder
from fdjax.serve.grammar_trial import TRIAL_SECONDS

HOSTILE = 60


@dataclass
class Grammar:
    """One that takes so many seconds to compile."""

    name: str
    seconds: float
    trial: int = 0


@dataclass
class Thread:
    """One thread of trials: what takes longer than its trial waits for the next one."""

    order: FairOrder[Grammar]
    num_trials: int = 0
    seconds: float = 0.0

    def add(self, owner: str, grammar: Grammar) -> None:
        rank = TRIAL_SECONDS[grammar.trial]
        self.order.add(grammar, owner=owner, rank=rank)

    def until(self, name: str) -> None:
        """Tries grammars until this one is compiled."""
        while True:
            owner, grammar = self.order.pop()
            may = TRIAL_SECONDS[grammar.trial]
            self.num_trials += 1
            self.seconds += min(may, grammar.seconds)
            self.order.spend(owner, min(may, grammar.seconds))
            if grammar.seconds <= may:
                if grammar.name == name:
                    return
            elif grammar.trial + 1 < len(TRIAL_SECONDS):
                grammar.trial += 1
                self.add(owner, grammar)


@pytest.fixture
def thread() -> Thread:
    thread = Thread(FairOrder())
    for number in range(HOSTILE):
        thread.add("hostile", Grammar(f"hostile {number}", 20.0))
    return thread


def test_another_owners_is_served_at_once(thread: Thread):
    """However many were there before, and however long they have been tried."""
    for _ in range(3 * HOSTILE):
        owner, grammar = thread.order.pop()
        thread.order.spend(owner, TRIAL_SECONDS[grammar.trial])
        grammar.trial = min(grammar.trial + 1, len(TRIAL_SECONDS) - 1)
        thread.add(owner, grammar)
    thread.add("innocent", Grammar("innocent", 0.3))
    thread.until("innocent")
    assert thread.num_trials <= 2 * len(TRIAL_SECONDS)


def test_the_same_owners_goes_before_those_that_have_been_tried_longer(thread: Thread):
    thread.add("hostile", Grammar("innocent", 0.3))
    thread.until("innocent")
    assert thread.num_trials == 3 * (HOSTILE + 1), "nobody's last trial came before"
    assert thread.seconds == pytest.approx(HOSTILE * (0.03 + 0.1 + 0.35) + 0.43)


@pytest.mark.parametrize("seconds", [0.01, 0.09])
def test_who_takes_little_waits_little(thread: Thread, seconds: float):
    thread.add("hostile", Grammar("innocent", seconds))
    thread.until("innocent")
    assert thread.seconds < HOSTILE * 0.13 + 0.13


def test_nobody_saves_up_by_staying_away():
    order = FairOrder[str]()
    for turn in range(100):
        order.add(f"a{turn}", owner="a")
        order.add(f"stays{turn}", owner="stays")
    for _ in range(150):
        order.spend(order.pop()[0], 1.0)
    for turn in range(20):
        order.add(f"b{turn}", owner="b")
    following = [order.pop() for _ in range(1)]
    order.spend(following[0][0], 1.0)
    for _ in range(29):
        following.append(order.pop())
        order.spend(following[-1][0], 1.0)
    assert 9 <= sum(owner == "b" for owner, _ in following) <= 11


def test_in_the_order_of_coming_where_all_else_is_equal():
    order = FairOrder[int]()
    for number in range(10):
        order.add(number)
    assert [order.pop() for _ in range(10)] == [("", number) for number in range(10)]
    assert not len(order)


def test_what_was_used_is_forgotten_when_nobody_waits():
    order = FairOrder[str]()
    order.add("first", owner="a")
    order.spend(order.pop()[0], 100.0)
    order.add("second", owner="a")
    order.add("third", owner="b")
    assert order.pop() == ("a", "second")


def test_shorter_work_goes_first():
    order = FairOrder[str]()
    order.add("long", size=100)
    order.add("short", size=1)
    assert [order.pop()[1] for _ in range(2)] == ["short", "long"]


def test_what_is_long_has_its_turn_however_much_comes_that_is_short():
    order = FairOrder[str]()
    order.add("long", size=100)
    order.add("short", size=9)
    done = list[str]()
    while "long" not in done:
        done.append(order.pop()[1])
        order.add("short", size=9)
    assert len(done) in (22, 23), "two wait each time, and each has a half"
