"""Beam searches leave rows to others, and wait for theirs without keeping all out."""

import pytest

from fdjax import SamplingParams
from fdjax.engine.beam_programs import Prepared
from fdjax.engine.buckets import Buckets
from fdjax.engine.checked_request import make_request
from fdjax.engine.group import Group, Samples
from fdjax.engine.origin import Origin
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.search import Search
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.memory.pages import PagePool
from fdjax.memory.prefix import PrefixKeys

PAGE_SIZE = 4


class Door:
    """Four rows, and as many pages as anybody wants."""

    def __init__(self, *, max_num_beams: int | None = None) -> None:
        buckets = Buckets.of(
            max_num_seqs=4, max_model_len=32, page_size=PAGE_SIZE, max_batched_tokens=64
        )
        self.scheduler = Scheduler(
            PagePool(200),
            buckets,
            page_size=PAGE_SIZE,
            caching=False,
            gathering=False,
            max_num_beams=max_num_beams,
        )
        self.num_asked = 0

    def ask(
        self, *, beams: int | None = None, origin: Origin | None = None
    ) -> EngineSequence:
        """A sequence of a tenant of its own, or that origin's; a search with beams."""
        self.num_asked += 1
        search = (
            None if beams is None else BeamSearchParams(beam_width=beams, max_tokens=8)
        )
        request = make_request(
            0,
            [5],
            SamplingParams(max_tokens=8) if search is None else search.sampling,
            vocab_size=100,
            max_model_len=32,
            beams=search,
        )
        group: Group = Samples()
        if search is not None:
            group = Search(search, PAGE_SIZE, 4, lambda: None, Prepared())
        sequence = EngineSequence(
            request,
            origin or Origin(tenant=str(self.num_asked)),
            seed=0,
            keys=PrefixKeys(PAGE_SIZE),
            tokens=[5],
            group=group,
        )
        self.scheduler.add(sequence)
        return sequence

    def enter(self) -> list[EngineSequence]:
        """Those let in now."""
        return self.scheduler.admit()


def test_searches_together_leave_rows_to_others():
    door = Door(max_num_beams=3)
    first, second, narrow = (door.ask(beams=count) for count in (2, 2, 1))
    assert door.enter() == [first], "and no search overtakes the second one"
    others = [door.ask() for _ in range(3)]
    assert door.enter() == others[:2], "all rows that are free"
    assert door.scheduler.giving_way() is None
    door.scheduler.end(first)
    assert door.enter() == [second]
    door.scheduler.end(second)
    assert door.enter() == [narrow, others[2]]


@pytest.mark.parametrize("origin", [None, Origin()])
def test_who_comes_later_goes_by_a_search_also_if_there_is_one_key(
    origin: Origin | None,
):
    """Who has no key is of one tenant with all others; so here is the search."""
    door = Door(max_num_beams=2)
    first = door.ask(beams=2, origin=origin)
    second = door.ask(beams=2, origin=origin and Origin())
    other = door.ask(origin=origin and Origin())
    assert door.enter() == [first, other]
    door.scheduler.end(first)
    assert door.enter() == [second]


def test_a_request_may_have_both():
    door, origin = Door(max_num_beams=2), Origin()
    searches = [door.ask(beams=2, origin=origin) for _ in range(2)]
    sample = door.ask(origin=origin)
    assert door.enter() == [searches[0], sample]
    door.scheduler.end(sample)
    assert door.enter() == []


def test_a_search_without_rows_is_overtaken_for_a_while():
    """Four times as many as there are rows; then rows are kept for it."""
    door = Door()
    long = [door.ask() for _ in range(2)]
    assert door.enter() == long
    search = door.ask(beams=3)
    overtaking = 0
    while [newcomer := door.ask()] == door.enter():
        overtaking += 1
        door.scheduler.end(newcomer)
    assert overtaking == 16
    assert door.enter() == [], "two rows are free"
    door.scheduler.end(long[0])
    assert door.enter() == [search]
    later, again = door.ask(beams=3), door.ask()
    door.scheduler.end(search)
    assert door.enter() == [newcomer, again], "of another one they are counted anew"
    assert later.row is None


def test_nobody_overtakes_a_search_who_holds_more():
    door, many = Door(), Origin(tenant="many")
    samples = [door.ask(origin=many) for _ in range(6)]
    assert door.enter() == samples[:4]
    search = door.ask(beams=2)
    door.scheduler.end(samples[0])
    assert door.enter() == []
    newcomer = door.ask()
    assert door.enter() == [newcomer]
    door.scheduler.end(samples[1])
    door.scheduler.end(samples[2])
    assert door.enter() == [search]


def test_the_less_urgent_do_not_overtake_a_search():
    door = Door()
    long = [door.ask() for _ in range(2)]
    assert door.enter() == long
    door.ask(beams=3)
    door.ask(origin=Origin(tenant="patient", priority=1))
    assert door.enter() == []
