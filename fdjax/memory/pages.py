"""The host's book of pages: which are free, lowest first."""

import heapq
from collections.abc import Iterable

from fdjax.errors import MemoryBudgetError


class PagePool:
    """Free pages of the KV array.

    The lowest free pages go out first, so that the top of the array stays free and
    contiguous. Every page is either free or held by exactly one caller.

    Args:
        num_pages: pages of the array; ids are `0 .. num_pages - 1`.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hands out the `count` lowest free pages, ascending.

        Raises:
            MemoryBudgetError: fewer than `count` pages are free.
        """
        if count > len(self._free):
            raise MemoryBudgetError(
                f"{count} pages wanted, {len(self._free)} of {self.num_pages} are free"
            )
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self._held.update(pages)
        return pages

    def give_back(self, pages: Iterable[int]) -> None:
        """Frees pages that were taken.

        Raises:
            ValueError: a page is not held, or is given twice; nothing is freed then.
        """
        returned = list(pages)
        strangers = [page for page in returned if page not in self._held]
        if strangers or len(set(returned)) != len(returned):
            raise ValueError(f"pages given back but not held, or twice: {returned}")
        self._held.difference_update(returned)
        for page in returned:
            heapq.heappush(self._free, page)
