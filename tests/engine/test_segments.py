"""Pages of beams under any order of feeding, selecting, growing and ending."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fdjax.engine.segments import Segments
from fdjax.memory.pages import PagePool

NUM_PAGES, PAGE, WIDTH, GROUPS = 30, 2, 3, 2


class Beams:
    """A group and what its beams must be able to read, by an index of its own."""

    def __init__(self) -> None:
        self.segments = Segments(WIDTH, PAGE)
        self.lines: list[list[int]] = [[] for _ in range(WIDTH)]
        self.origins: list[list[int]] = [[] for _ in range(WIDTH)]


def pages_read(beams: Beams) -> set[tuple[int, int]]:
    """Of each beam, the pages in which a token of some beam lies."""
    return {
        (origin, place // PAGE)
        for origins in beams.origins
        for place, origin in enumerate(origins)
    }


class Searches(RuleBasedStateMachine):
    """Two groups of beams and a stranger share a pool; memory holds what was written.

    A token's key is stood for by a number that is written once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.groups = [Beams() for _ in range(GROUPS)]
        self.memory: dict[tuple[int, int], int] = {}
        self.strange: list[int] = []
        self.num_written = 0

    @rule(group=st.integers(0, GROUPS - 1))
    def feed(self, group: int) -> None:
        """Each beam writes one token; pages are taken where its own are full."""
        beams = self.groups[group]
        place = len(beams.lines[0])
        missing = beams.segments.missing(place + 1)
        if missing > self.pool.num_free:
            return
        beams.segments.grow(self.pool.take(missing))
        for beam, line in enumerate(beams.lines):
            page = beams.segments.pages[beam][place // PAGE]
            assert page is not None, "a page that is written next was given back"
            self.memory[page, place % PAGE] = self.num_written
            line.append(self.num_written)
            beams.origins[beam].append(beam)
            self.num_written += 1
        beams.segments.feed()

    @rule(
        group=st.integers(0, GROUPS - 1),
        parents=st.lists(st.integers(0, WIDTH - 1), min_size=WIDTH, max_size=WIDTH),
    )
    def select(self, group: int, parents: list[int]) -> None:
        beams = self.groups[group]
        beams.lines = [[*beams.lines[parent]] for parent in parents]
        beams.origins = [[*beams.origins[parent]] for parent in parents]
        self.pool.give_back(beams.segments.select(parents))
        read = pages_read(beams)
        for beam, pages in enumerate(beams.segments.pages):
            for block in range(len(beams.lines[0]) // PAGE):
                assert (pages[block] is not None) == ((beam, block) in read)

    @rule(group=st.integers(0, GROUPS - 1))
    def end(self, group: int) -> None:
        self.pool.give_back(self.groups[group].segments.held)
        self.groups[group] = Beams()

    @rule(count=st.integers(1, 4))
    def somebody_else_writes(self, count: int) -> None:
        pages = self.pool.take(min(count, self.pool.num_free))
        self.memory.update({(p, slot): -1 for p in pages for slot in range(PAGE)})
        self.strange += pages

    @precondition(lambda self: self.strange)
    @rule(data=st.data())
    def somebody_else_leaves(self, data: Any) -> None:
        count = data.draw(st.integers(1, len(self.strange)))
        self.pool.give_back(self.strange[:count])
        del self.strange[:count]

    @rule(count=st.integers(1, NUM_PAGES))
    def pages_are_moved(self, count: int) -> None:
        # As often as not, of all that nobody holds.
        moves = self.pool.clear_top(min(count, self.pool.num_free))
        self.follow(moves)
        for (page, slot), token in list(self.memory.items()):
            if page in moves:
                self.memory[moves[page], slot] = token
                self.memory[page, slot] = -2

    def follow(self, moves: dict[int, int]) -> None:
        """All who hold pages are told."""
        for beams in self.groups:
            beams.segments.move(moves)
        self.strange = [moves.get(page, page) for page in self.strange]

    @invariant()
    def every_beam_reads_what_it_has_written(self) -> None:
        for beams in self.groups:
            for line, origins in zip(beams.lines, beams.origins, strict=True):
                for place, (token, origin) in enumerate(
                    zip(line, origins, strict=True)
                ):
                    page = beams.segments.pages[origin][place // PAGE]
                    assert page is not None and self.memory[page, place % PAGE] == token

    @invariant()
    def full_pages_are_held_while_a_beam_reads_them(self) -> None:
        """And no longer than until a reordering: feeding gives none back."""
        for beams in self.groups:
            for beam, block in pages_read(beams):
                assert beams.segments.pages[beam][block] is not None

    @property
    def owned(self) -> list[int]:
        """Pages that are written by one alone."""
        held = [page for beams in self.groups for page in beams.segments.held]
        return held + self.strange

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = self.owned
        assert len({*owned}) == len(owned)
        assert self.pool.num_free + len(owned) == NUM_PAGES


TestSearches = Searches.TestCase


def test_pages_are_given_back_by_the_selection_that_leaves_them():
    segments = Segments(3, 2)
    segments.grow([7, 8, 9])
    segments.feed()
    assert segments.select([0, 0, 1]) == [], "the page is not full"
    segments.feed()
    assert segments.missing(3) == 3
    segments.grow([4, 5, 6])
    # The tokens of beam 1: one in the page of beam 0, one in its own.
    assert segments.select([1, 1, 1]) == [9]
    assert segments.pages == [[7, 4], [8, 5], [None, 6]]
    assert segments.table(99)[2] == [99, 6]
    assert segments.held == [7, 4, 8, 5, 6]
    segments.feed()
    assert segments.select([0, 1, 2]) == [], "nobody leaves it twice"
