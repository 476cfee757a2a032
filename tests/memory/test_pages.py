"""The book of pages, under any order of taking and giving back."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from fdjax.errors import MemoryBudgetError
from fdjax.memory.pages import PagePool

NUM_PAGES = 12
RESERVE = 4


class Pages(RuleBasedStateMachine):
    """Callers take, share and give back pages; the machine keeps its own book."""

    holdings = Bundle("holdings")
    reserve = 0

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES, reserve=self.reserve)
        self.held: list[list[int]] = []
        self.key_of: dict[int, bytes] = {}  # of pages whose contents can be found
        self.cached: list[int] = []  # held by nobody, the next to go first

    def is_held(self, page: int) -> bool:
        return any(page in pages for pages in self.held)

    @property
    def free(self) -> list[int]:
        pages = range(NUM_PAGES)
        return [p for p in pages if not self.is_held(p) and p not in self.cached]

    @rule(target=holdings, count=st.integers(0, NUM_PAGES + 2))
    def take(self, count: int) -> list[int]:
        free = self.free
        available = len(free) + len(self.cached)
        if count > available:
            with pytest.raises(MemoryBudgetError, match=rf"{count} .* {available} of"):
                self.pool.take(count)
            return []
        pages = self.pool.take(count)
        low = range(NUM_PAGES - self.reserve)
        order = [page for page in free if page in low]
        order += [page for page in self.cached if page in low]
        order += [page for page in free if page not in low]
        order += [page for page in self.cached if page not in low]
        assert pages == order[:count], "those that steps borrow go last"
        self.evict(pages)
        self.held.append(pages)
        return pages

    def evict(self, pages: list[int]) -> None:
        for page in [page for page in pages if page in self.cached]:
            self.cached.remove(page)
            assert self.pool.find(self.key_of.pop(page)) is None

    @rule(count=st.integers(0, NUM_PAGES))
    def clear_top(self, count: int) -> None:
        held = {page for pages in self.held for page in pages}
        first, before = NUM_PAGES - count, self.pool.num_cached
        assert self.pool.can_clear(count) == (len(held) <= first)
        if len(held) > first:
            with pytest.raises(MemoryBudgetError, match=rf"{count} .* {len(held)} of"):
                self.pool.clear_top(count)
            assert self.pool.num_cached == before
            return
        free = [page for page in self.free if page < first]
        moves = self.pool.clear_top(count)
        self.evict([page for page in self.cached if page >= first])
        assert list(moves) == sorted(page for page in held if page >= first)
        targets = list(moves.values())
        assert targets[: len(free)] == free[: len(targets)], "the lowest free first"
        assert set(targets[len(free) :]) <= set(self.cached), "then cached ones"
        self.evict(targets)
        for pages in self.held:  # bundles hold these lists
            pages[:] = [moves.get(page, page) for page in pages]
        for source, target in moves.items():
            if source in self.key_of:
                self.key_of[target] = self.key_of.pop(source)
        assert self.pool.boundary <= first

    @rule(pages=holdings, key=st.binary(min_size=1, max_size=1), place=st.integers(0))
    def remember(self, pages: list[int], key: bytes, place: int) -> None:
        if not pages or pages not in self.held:
            return
        page = pages[place % len(pages)]
        self.pool.remember(page, key)
        if page not in self.key_of and key not in self.key_of.values():
            self.key_of[page] = key

    @rule(target=holdings, key=st.binary(min_size=1, max_size=1))
    def share(self, key: bytes) -> list[int]:
        page = self.pool.find(key)
        known = [p for p, other in self.key_of.items() if other == key]
        assert known == ([] if page is None else [page])
        if page is None:
            return []
        self.pool.share([page])
        self.cached = [other for other in self.cached if other != page]
        self.held.append([page])
        return [page]

    @rule(target=holdings, pages=holdings)
    def fork(self, pages: list[int]) -> list[int]:
        if pages not in self.held:
            return []
        branch = self.pool.fork(pages)
        assert branch == pages and branch is not pages
        self.held.append(branch)
        return branch

    @rule(page=st.integers(-1, NUM_PAGES), pages=holdings)
    def fork_what_nobody_holds(self, page: int, pages: list[int]) -> None:
        if not self.is_held(page) and pages in self.held:
            with pytest.raises(ValueError, match="forked, but not held"):
                self.pool.fork([*pages, page])

    @rule(pages=consumes(holdings))
    def give_back(self, pages: list[int]) -> None:
        if not pages:
            return
        self.pool.give_back(pages)
        # Not an equal one: a branch whose pages move is another than those forked.
        self.held = [one for one in self.held if one is not pages]
        for page in reversed(pages):
            if not self.is_held(page) and page in self.key_of:
                self.cached.append(page)

    @rule(pages=holdings, stranger=st.integers(-1, NUM_PAGES))
    def give_back_a_stranger(self, pages: list[int], stranger: int) -> None:
        if self.is_held(stranger) or pages not in self.held:
            return
        with pytest.raises(ValueError, match="not held"):
            self.pool.give_back([*pages, stranger])

    @rule(pages=holdings)
    def give_back_twice_in_one_call(self, pages: list[int]) -> None:
        if pages:
            with pytest.raises(ValueError, match="twice"):
                self.pool.give_back([*pages, pages[0]])

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.cached.clear()
        self.key_of.clear()

    @invariant()
    def free_cached_and_held_are_all(self) -> None:
        held = {page for pages in self.held for page in pages}
        assert self.pool.num_cached == len(self.cached)
        assert self.pool.num_free + len(held) == NUM_PAGES
        end = max(held, default=-1) + 1
        assert self.pool.boundary == end
        share = sum(page not in held for page in range(end)) / max(end, 1)
        assert self.pool.fragmentation == pytest.approx(share)
        for page, key in self.key_of.items():
            assert self.pool.find(key) == page


class PagesWithReserve(Pages):
    """Of which steps borrow the last ones."""

    reserve = RESERVE


TestPages = Pages.TestCase
TestPagesWithReserve = PagesWithReserve.TestCase


def test_cached_pages_give_way_before_those_that_steps_borrow():
    pool = PagePool(6, reserve=2)
    first, last = pool.take(2), pool.take(2)
    for page in first:
        pool.remember(page, bytes([page]))
    pool.give_back(first)
    assert pool.take(2) == [1, 0], "4 and 5 are free, but steps borrow them"
    assert pool.take(1) == [4]
    pool.give_back(last)
    assert pool.clear_top(2) == {4: 2}
    assert (pool.boundary, pool.fragmentation) == (3, 0.0)


def test_a_page_keeps_its_key_and_its_holders_when_it_moves():
    pool = PagePool(4)
    below, page = pool.take(3), pool.take(1)
    pool.remember(3, b"key")
    pool.share(page)
    pool.give_back(below)
    assert pool.clear_top(2) == {3: 0}
    assert pool.find(b"key") == 0
    pool.give_back([0])
    pool.give_back([0])
    assert (pool.find(b"key"), pool.num_cached, pool.num_free) == (0, 1, 4)


def test_a_cached_page_that_is_borrowed_is_forgotten():
    pool = PagePool(3)
    pages = pool.take(3)
    pool.remember(2, b"key")
    pool.give_back(pages)
    assert pool.find(b"key") == 2
    assert pool.clear_top(1) == {}
    assert pool.find(b"key") is None
    assert (pool.num_free, pool.num_cached) == (3, 0)


def test_pages_given_back_cannot_be_given_back_again():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give_back(pages)
    with pytest.raises(ValueError, match="not held"):
        pool.give_back(pages)
    assert pool.num_free == 4
