"""The host's book of pages: which are free, who holds the others, what they contain."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from fdjax.errors import MemoryBudgetError
from fdjax.memory.highest import Highest


class PagePool:
    """Pages of the KV array: free, held by one or more sequences, or cached.

    A page whose contents are known by a key (`remember`) is found by it (`find`) while
    somebody holds it, and after that, cached, until its room is needed: the page that
    nobody has held for the longest time goes first.

    Steps borrow the array's last pages for what they compute (`clear_top`), so these
    are handed out last. The lowest free pages go out first; then cached ones below the
    reserve give way; only then the pages of the reserve are handed out, the free ones
    first.

    Invariant: every page is exactly one of free, cached and held.

    Args:
        num_pages: pages of the array; ids are `0 .. num_pages - 1`.
        reserve: how many of the last ones steps usually borrow at most.
    """

    def __init__(self, num_pages: int, *, reserve: int = 0) -> None:
        self.num_pages = num_pages
        self._reserved_from = max(num_pages - reserve, 0)
        self._free = list(range(num_pages))
        self._holders: dict[int, int] = {}
        # Below the reserve, and in it; whoever was held last is last.
        self._cached: tuple[OrderedDict[int, None], OrderedDict[int, None]]
        self._cached = OrderedDict(), OrderedDict()
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._highest = Highest(num_pages, self._holders.__contains__)

    @property
    def num_free(self) -> int:
        """Pages nobody holds: free ones, and cached ones, which give way."""
        return len(self._free) + self.num_cached

    @property
    def num_cached(self) -> int:
        """Pages nobody holds whose contents may still be found."""
        low, top = self._cached
        return len(low) + len(top)

    @property
    def boundary(self) -> int:
        """One past the highest page that somebody holds; any thread may ask."""
        return self._highest.end

    @property
    def fragmentation(self) -> float:
        """Share of the pages below the boundary that nobody holds, 0 to 1."""
        end = self.boundary
        return max(1 - len(self._holders) / end, 0.0) if end else 0.0

    def take(self, count: int) -> list[int]:
        """Hands out pages with one holder each, in the order that the class tells.

        Raises:
            MemoryBudgetError: fewer than `count` pages are free or cached.
        """
        if count > self.num_free:
            raise MemoryBudgetError(
                f"{count} pages wanted, {self.num_free} of {self.num_pages} are free"
            )
        pages: list[int] = []
        for cached, end in zip(
            self._cached, (self._reserved_from, self.num_pages), strict=True
        ):
            pages += self._lowest_free(count - len(pages), end)
            pages += self._evicted(cached, count - len(pages))
        self._holders.update(dict.fromkeys(pages, 1))
        self._highest.added(pages)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to pages that `find` has returned."""
        for page in pages:
            cached = self._cached_beside(page)
            assert page in self._holders or page in cached, page
            cached.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1
            self._highest.added((page,))

    def fork(self, pages: Sequence[int]) -> list[int]:
        """Adds a holder to pages that somebody holds, for another branch of theirs.

        Returns:
            The same pages, which the branch gives back as its own.

        Raises:
            ValueError: a page is not held; nothing is changed then.
        """
        if not self._holders.keys() >= set(pages):
            raise ValueError(f"pages to be forked, but not held: {list(pages)}")
        for page in pages:
            self._holders[page] += 1
        return list(pages)

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
                self._cached_beside(page)[page] = None
            else:
                heapq.heappush(self._free, page)
        self._highest.removed()

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
        for cached in self._cached:
            for page in cached:
                heapq.heappush(self._free, page)
            cached.clear()
        self._key_of.clear()
        self._page_of.clear()

    def can_clear(self, count: int) -> bool:
        """Whether the other pages have room for all that somebody holds."""
        return len(self._holders) + count <= self.num_pages

    def clear_top(self, count: int) -> dict[int, int]:
        """Makes the array's last `count` pages free, for a step to overwrite.

        Cached ones among them are forgotten, and held ones move to the lowest free
        pages, or to cached ones, which give way. A page keeps its holders and its key.

        Returns:
            From which page to which contents must be moved, before the step; whoever
            holds a source now holds its target. No page is both.

        Raises:
            MemoryBudgetError: more pages are held than the others are; nothing is
                changed then.
        """
        if not self.can_clear(count):
            raise MemoryBudgetError(
                f"{count} pages wanted at the end of the KV array, but "
                f"{len(self._holders)} of its {self.num_pages} are held"
            )
        first = self.num_pages - count
        self._forget_from(first)
        sources = [p for p in range(first, self.boundary) if p in self._holders]
        if not sources:
            return {}
        targets = self._lowest_free(len(sources), first)
        for cached in self._cached:
            targets += self._evicted(cached, len(sources) - len(targets))
        moves = dict(zip(sources, targets, strict=True))
        for source, target in moves.items():
            self._move(source, target)
        self._highest.added(targets)
        return moves

    def _lowest_free(self, count: int, end: int) -> list[int]:
        """So many free pages below `end`, or all; they belong to nobody then."""
        pages: list[int] = []
        while len(pages) < count and self._free and self._free[0] < end:
            pages.append(heapq.heappop(self._free))
        return pages

    def _evicted(self, cached: OrderedDict[int, None], count: int) -> list[int]:
        """So many cached pages, or all; they belong to nobody then."""
        pages = [cached.popitem(last=False)[0] for _ in range(min(count, len(cached)))]
        for page in pages:
            self._forget(page)
        return pages

    def _forget_from(self, first: int) -> None:
        """Frees cached pages from `first` on."""
        low, top = self._cached
        for cached in (top,) if first >= self._reserved_from else (low, top):
            for page in [page for page in cached if page >= first]:
                del cached[page]
                self._forget(page)
                heapq.heappush(self._free, page)

    def _move(self, source: int, target: int) -> None:
        self._holders[target] = self._holders.pop(source)
        heapq.heappush(self._free, source)
        key = self._key_of.pop(source, None)
        if key is not None:
            self._key_of[target], self._page_of[key] = key, target

    def _cached_beside(self, page: int) -> OrderedDict[int, None]:
        return self._cached[page >= self._reserved_from]

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
