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


class Pages(RuleBasedStateMachine):
    """Callers take, share and give back pages; the machine keeps its own book."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
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
        evicted = self.cached[: max(count - len(free), 0)]
        assert pages == [*free[:count], *evicted], "free ones first, the lowest first"
        del self.cached[: len(evicted)]
        for page in evicted:
            assert self.pool.find(self.key_of.pop(page)) is None
        self.held.append(pages)
        return pages

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

    @rule(pages=consumes(holdings))
    def give_back(self, pages: list[int]) -> None:
        if not pages:
            return
        self.pool.give_back(pages)
        self.held.remove(pages)
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


TestPages = Pages.TestCase


def test_pages_given_back_cannot_be_given_back_again():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give_back(pages)
    with pytest.raises(ValueError, match="not held"):
        pool.give_back(pages)
    assert pool.num_free == 4
