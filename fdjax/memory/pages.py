"""The host's book of pages: which are free, who holds the others, what they contain."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from fdjax.errors import MemoryBudgetError


class PagePool:
    """Pages of the KV array: free, held by one or more sequences, or cached.

    A page whose contents are known by a key (`remember`) is found by it (`find`) while
    somebody holds it, and after that, cached, until its room is needed: the page that
    nobody has held for the longest time goes first. The lowest free pages go out before
    any cached one, so that the top of the array stays free and contiguous.

    Invariant: every page is exactly one of free, cached and held.

    Args:
        num_pages: pages of the array; ids are `0 .. num_pages - 1`.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))
        self._holders: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Pages nobody holds: free ones, and cached ones, which give way."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Pages nobody holds whose contents may still be found."""
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """Hands out pages with one holder each, the lowest free ones first.

        Raises:
            MemoryBudgetError: fewer than `count` pages are free or cached.
        """
        if count > self.num_free:
            raise MemoryBudgetError(
                f"{count} pages wanted, {self.num_free} of {self.num_pages} are free"
            )
        pages = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        while len(pages) < count:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
            pages.append(page)
        self._holders.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to pages that `find` has returned."""
        for page in pages:
            assert page in self._holders or page in self._cached, page
            self._cached.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Takes a holder from each page; what nobody holds is cached, or free.

        Of a sequence's pages the last become the first to go.

        Raises:
            ValueError: a page is not held, or is given twice; nothing is changed then.
        """
        if len(set(pages)) != len(pages) or not self._holders.keys() >= set(pages):
            raise ValueError(f"pages given back but not held, or twice: {list(pages)}")
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] > 0:
                continue
            del self._holders[page]
            if page in self._key_of:
                self._cached[page] = None
            else:
                heapq.heappush(self._free, page)

    def remember(self, page: int, key: bytes) -> None:
        """Makes a held page's contents findable; the first page of a key keeps it."""
        assert page in self._holders, page
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def find(self, key: bytes) -> int | None:
        """The page that holds what `key` names, or `None`; `share` it before use."""
        return self._page_of.get(key)

    def forget(self) -> None:
        """Makes no page's contents findable any more: the array holds others now."""
        for page in self._cached:
            heapq.heappush(self._free, page)
        self._cached.clear()
        self._key_of.clear()
        self._page_of.clear()

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
