"""Who gets the next row: nobody starves, and to leave the queue costs nothing."""

import pathlib
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.turns import in_turn
from fdjax.engine.waiting import WaitingSequences
from tests.support.crowd import NUM_ENDS, CountedJob, crowd, sequence_of


class Hall:
    """Those that wait for some rows; whoever has had one for longest gives it up."""

    def __init__(self, num_rows: int = 1) -> None:
        self.waiting = WaitingSequences()
        self.running: deque[EngineSequence] = deque()
        self.num_rows = num_rows
        self.admitted: list[EngineSequence] = []

    def ask(
        self,
        tenant: str = "",
        *,
        n: int = 1,
        priority: int = 0,
    ) -> list[EngineSequence]:
        """A request of `n` samples."""
        origin = Origin(tenant=tenant, priority=priority)
        sequences = [sequence_of(origin) for _ in range(n)]
        for sequence in sequences:
            self.waiting.push(sequence)
        return sequences

    def turn(self) -> EngineSequence:
        """The next sequence gets a row."""
        if len(self.running) == self.num_rows:
            self.waiting.unseated(self.running.popleft())
        sequence = next(self.waiting.in_turn())
        self.waiting.take(sequence)
        self.waiting.seated(sequence)
        self.running.append(sequence)
        self.admitted.append(sequence)
        return sequence


# --- Ending ---------------------------------------------------------------------------


def operations(call: Callable[[], None]) -> int:
    """Operations of the interpreter that a call takes, loops and all."""
    count = 0

    def one(*_: object) -> None:
        nonlocal count
        count += 1

    tool, event = sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION
    sys.monitoring.use_tool_id(tool, "operations")
    sys.monitoring.register_callback(tool, event, one)
    sys.monitoring.set_events(tool, event)
    try:
        call()
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)
    return count


@pytest.mark.parametrize("place", [8, 9], ids=["request", "sample"])
def test_to_end_takes_the_same_however_many_wait(place: int):
    (few, some), (many, sequences) = crowd(3), crowd(1_000)
    before = CountedJob.num_touches
    cost = operations(lambda: few.end(some[place]))
    assert operations(lambda: many.end(sequences[place])) <= cost + 10
    assert CountedJob.num_touches - before <= 8


def test_many_ends():
    """In a process of its own: here, types are checked at every call."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crowd"],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        check=True,
        timeout=300,  # a minute on a slow machine, not the hours it would take
    )
    assert 0 < int(done.stdout) <= 8 * NUM_ENDS


def test_nothing_is_left_of_those_that_have_gone():
    scheduler, sequences = crowd(5)
    assert scheduler.waiting.load == Load(requests=6, samples=40, tokens=120)
    for sequence in sequences:
        scheduler.end(sequence)
    assert scheduler.waiting.load == Load(0, 0, 0)
    assert scheduler.admit() == []


# --- Turns ----------------------------------------------------------------------------


def test_requests_of_one_sample_go_in_the_order_they_come():
    hall = Hall(4)
    sequences = [sequence for _ in range(9) for sequence in hall.ask()]
    assert [hall.turn() for _ in sequences] == sequences


def test_a_request_of_many_samples_takes_no_row_that_another_waits_for():
    hall = Hall(4)
    many = hall.ask(n=128)
    first = [hall.turn() for _ in range(4)]
    assert first == many[:4], "there is nobody else"
    others = [sequence for _ in range(6) for sequence in hall.ask()]
    assert [hall.turn() for _ in others] == others
    assert hall.turn() is many[4]


def test_tenants_share_the_rows_however_many_requests_they_send():
    hall = Hall(4)
    for _ in range(20):
        hall.ask("loud", n=4)
    quiet = [sequence for _ in range(6) for sequence in hall.ask("quiet")]
    for _ in range(12):
        hall.turn()
    rows = Counter(sequence.origin.tenant for sequence in hall.admitted[:4])
    assert rows == {"loud": 2, "quiet": 2}
    assert quiet[-1] in hall.admitted, "half of all rows"


def test_what_is_put_back_goes_before_others_that_hold_as_little():
    hall = Hall(2)
    (first,), (second,) = hall.ask(), hall.ask()
    hall.turn()
    hall.turn()
    later = hall.ask()
    hall.waiting.unseated(hall.running.pop())
    hall.waiting.put_back(second)
    assert next(hall.waiting.in_turn()) is second
    assert (first.turn, second.turn, later[0].turn) == (0, 1, -1)


@pytest.mark.parametrize("n", [1, 4])
def test_a_low_priority_gets_one_row_in_eight(n: int):
    hall = Hall(4)
    low = hall.ask("low", n=4, priority=9)
    for _ in range(80):
        hall.ask("urgent", priority=-(2**31), n=n)
        hall.turn()
    turns = [turn for turn, sequence in enumerate(hall.admitted, 1) if sequence in low]
    assert turns == [8, 16, 24, 32]
    assert {sequence.priority for sequence in low} == {-(2**31)}, (
        "none is put back before others"
    )


def test_twelve_clients_in_a_loop_do_not_stop_one_that_came_in_between():
    """Whoever is served comes back at once, with four samples of the best priority."""
    hall = Hall(4)
    for _ in range(12):
        hall.ask("loud", n=4, priority=-(2**31))
    (late,) = hall.ask("late")
    while late not in hall.admitted and len(hall.admitted) < 200:
        hall.turn()
        hall.ask("loud", n=4, priority=-(2**31))
    assert len(hall.admitted) == 8


Ask = st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 1))


@settings(max_examples=100, deadline=None)
@given(
    num_rows=st.integers(1, 4),
    asks=st.lists(st.lists(Ask, max_size=3), min_size=1, max_size=40),
    aborts=st.sets(st.integers(0, 60)),
)
def test_nobody_starves(
    num_rows: int, asks: list[list[tuple[str, int, int]]], aborts: set[int]
):
    """Whatever comes later, a request has a row after so many turns of others.

    Of 8 turns each of two priorities has one; of the turns of a priority, each of two
    tenants one in so many as give up all rows, and one more; and of a tenant's turns,
    each request that came before has one.
    """
    hall = Hall(num_rows)
    latest: dict[Origin, int] = {}
    num_asked = 0
    for more in [*asks, *[[]] * 600]:
        for tenant, n, priority in more:
            waiting = {sequence.origin for sequence in hall.waiting}
            before = sum(one.tenant == tenant for one in waiting)
            sequences = hall.ask(tenant, n=n, priority=priority)
            turns = 8 * (num_rows + 2) * (before + 1)
            latest[sequences[0].origin] = len(hall.admitted) + turns
            for sequence in sequences:
                num_asked += 1
                if num_asked in aborts:
                    hall.waiting.remove(sequence)
        if hall.waiting.load.samples:
            origin = hall.turn().origin
            assert len(hall.admitted) <= latest.pop(origin, len(hall.admitted))
    assert not hall.waiting.load.samples


def test_the_last_in_turn_is_of_whoever_holds_most():
    hall = Hall(8)
    hall.ask("a", n=3)
    hall.ask("a")
    hall.ask("b")
    hall.ask("b", priority=-1)
    while hall.waiting.load.samples:
        hall.turn()
    order = in_turn(hall.running)
    assert [(sequence.origin.tenant, sequence.priority) for sequence in order] == [
        ("b", -1), ("a", 0), ("b", 0), ("a", 0), ("a", 0), ("a", 0),
    ]  # fmt: skip
    assert order[-1].turn == max(
        sequence.turn for sequence in hall.running if sequence.priority == 0
    )
