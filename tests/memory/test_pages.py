"""The book of pages, under any order of taking and giving back."""

import random

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
    """Callers take pages and give them back; the machine keeps its own book."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.owned: list[list[int]] = []

    @property
    def free(self) -> list[int]:
        owned = {page for pages in self.owned for page in pages}
        return [page for page in range(NUM_PAGES) if page not in owned]

    @rule(target=taken, count=st.integers(0, NUM_PAGES + 2))
    def take(self, count: int) -> list[int]:
        free = self.free
        if count > len(free):
            with pytest.raises(MemoryBudgetError, match=rf"{count} .* {len(free)} of"):
                self.pool.take(count)
            return []
        pages = self.pool.take(count)
        assert pages == free[:count], "the lowest free pages, ascending"
        self.owned.append(pages)
        return pages

    @rule(pages=consumes(taken), order=st.randoms(use_true_random=False))
    def give_back(self, pages: list[int], order: random.Random) -> None:
        shuffled = list(pages)
        order.shuffle(shuffled)
        self.pool.give_back(shuffled)
        if pages:
            self.owned.remove(pages)

    @rule(pages=taken, stranger=st.integers(-1, NUM_PAGES))
    def give_back_a_stranger(self, pages: list[int], stranger: int) -> None:
        held = {page for owned in self.owned for page in owned}
        if stranger in held:
            return
        with pytest.raises(ValueError, match="not held"):
            self.pool.give_back([*pages, stranger])

    @rule(pages=taken)
    def give_back_twice_in_one_call(self, pages: list[int]) -> None:
        if pages:
            with pytest.raises(ValueError, match="twice"):
                self.pool.give_back([*pages, pages[0]])

    @invariant()
    def free_and_owned_are_all(self) -> None:
        owned = [page for pages in self.owned for page in pages]
        assert len(set(owned)) == len(owned), "a page with two owners"
        assert self.pool.num_free + len(owned) == NUM_PAGES


TestPages = Pages.TestCase


def test_pages_given_back_cannot_be_given_back_again():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give_back(pages)
    with pytest.raises(ValueError, match="not held"):
        pool.give_back(pages)
    assert pool.num_free == 4
