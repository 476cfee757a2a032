"""`Highest`: the highest of a changing set of page ids."""

import heapq
from collections.abc import Callable, Iterable


class Highest:
    """One past the highest id of a set, followed as ids come and go.

    What has left the set stays in a heap until it is the highest: each change costs a
    logarithm, and asking nothing. Any thread may ask.

    Args:
        num_ids: ids are `0 .. num_ids - 1`.
        contains: whether an id is in the set now.
    """

    def __init__(self, num_ids: int, contains: Callable[[int], bool]) -> None:
        self._contains = contains
        self._heap: list[int] = []
        self._in_heap = bytearray(num_ids)
        self.end = 0

    def added(self, ids: Iterable[int]) -> None:
        """Some are in the set now."""
        for each in ids:
            if not self._in_heap[each]:
                self._in_heap[each] = True
                heapq.heappush(self._heap, -each)
        self.removed()

    def removed(self) -> None:
        """Some may have left the set."""
        heap = self._heap
        while heap and not self._contains(-heap[0]):
            self._in_heap[-heapq.heappop(heap)] = False
        self.end = 1 - heap[0] if heap else 0
