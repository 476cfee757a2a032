"""Tenants that may hold so many rows, and have so many sequences wait."""

from typing import Any

import pytest

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.shares import TenantShare, check_share
from fdjax.engine.waiting import WaitingSequences
from fdjax.errors import QuotaError, RequestError
from tests.support.crowd import sequence_of


class Hall:
    """Sequences that wait for rows, of which there are enough."""

    def __init__(self) -> None:
        self.waiting = WaitingSequences()

    def ask(self, tenant: str, *, n: int = 1, priority: int = 0, **limits: Any) -> None:
        origin = Origin(tenant=tenant, priority=priority, **limits)
        for _ in range(n):
            self.waiting.push(sequence_of(origin))

    def admit(self) -> list[EngineSequence]:
        """All that may have a row."""
        admitted: list[EngineSequence] = []
        while sequence := next(self.waiting.in_turn(), None):
            self.waiting.take(sequence)
            self.waiting.seated(sequence)
            admitted.append(sequence)
        return admitted

    def leave(self, sequence: EngineSequence) -> None:
        self.waiting.unseated(sequence)


def tenants(sequences: list[EngineSequence]) -> list[str]:
    return [sequence.origin.tenant for sequence in sequences]


def test_who_may_hold_no_more_rows_waits_and_others_do_not():
    hall = Hall()
    hall.ask("a", n=5, max_running=2)
    hall.ask("b", n=3)
    first = hall.admit()
    assert sorted(tenants(first)) == ["a", "a", "b", "b", "b"]
    assert hall.waiting.load.samples == 3
    hall.leave(next(sequence for sequence in first if sequence.origin.tenant == "a"))
    assert tenants(hall.admit()) == ["a"]
    assert hall.waiting.shares.of("a") == TenantShare(2, Load(1, 2, 6), 2)
    assert hall.waiting.shares.of("b") == TenantShare(3)
    assert hall.waiting.shares.seen() == {"a": (2, 2), "b": (3, 0)}


@pytest.mark.parametrize("urgent", [0, -1])
def test_rows_of_all_priorities_count(urgent: int):
    hall = Hall()
    hall.ask("a", max_running=1)
    (running,) = hall.admit()
    hall.ask("a", priority=urgent, max_running=1)
    hall.ask("b", priority=1)
    assert tenants(hall.admit()) == ["b"], "a level that is full lets others by"
    hall.leave(running)
    assert tenants(hall.admit()) == ["a"]


def test_the_last_request_says_how_many_rows_there_are():
    hall = Hall()
    hall.ask("a", n=4, max_running=1)
    assert len(hall.admit()) == 1
    hall.ask("a", max_running=3)
    assert len(hall.admit()) == 2
    hall.ask("a")
    assert len(hall.admit()) == 3


def test_a_job_put_back_waits_for_its_tenants_row():
    hall = Hall()
    hall.ask("a", n=2, max_running=1)
    (sequence,) = hall.admit()
    hall.leave(sequence)
    hall.waiting.put_back(sequence)
    assert hall.admit() == [sequence]
    assert hall.waiting.load.samples == 1


def test_whoever_has_left_is_forgotten():
    hall = Hall()
    hall.ask("a", n=2, max_running=1)
    (sequence,) = hall.admit()
    hall.waiting.remove(next(iter(hall.waiting)))
    hall.leave(sequence)
    assert hall.waiting.shares.seen() == {}


def test_a_queue_that_is_full_is_told_with_both_numbers():
    hall = Hall()
    origin = Origin(tenant="a", max_queued=3)

    def check(origin: Origin, count: int) -> None:
        waiting = hall.waiting.shares.of(origin.tenant).waiting.samples
        check_share(origin, count, waiting=waiting)

    check(origin, 3)
    hall.ask("a", n=2)
    check(origin, 1)
    with pytest.raises(QuotaError) as caught:
        check(origin, 2)
    assert str(caught.value) == (
        "max_queued_samples of 'a' is 3, of which 2 wait, and this request has 2"
    )
    with pytest.raises(RequestError, match=r"n asks for 4 samples .* 'a' is 3"):
        check(origin, 4)
    check(Origin(tenant="b", max_queued=3), 3)
    hall.admit()
    check(origin, 3)
