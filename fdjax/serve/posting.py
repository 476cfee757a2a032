"""`Postings`: what an engine's thread has made, brought to the tasks of its loops."""

import asyncio
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, MutableMapping, Sequence

from fdjax.serve.inbox import Item
from fdjax.serve.tickets import Ticket

# Put at once. Each wakes a task, which makes text of it and sends it (25 us): whoever
# else has something to do, as a request that arrives, comes after each slice, and not
# after all rows of a step.
_SLICE = 16

type Delivery = tuple[Ticket, Item]


class Posting:
    """Puts items in inboxes of one loop, in the order in which they were posted."""

    def __init__(self) -> None:
        self._items: deque[Delivery] = deque()
        self._is_putting = False

    def post(self, loop: asyncio.AbstractEventLoop, items: Sequence[Delivery]) -> bool:
        """Called on the engine's thread; whether the loop still runs."""
        self._items.extend(items)
        try:
            loop.call_soon_threadsafe(self._begin, loop)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_putting:
            self._put_slice(loop)

    def _put_slice(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(len(self._items), _SLICE)):
            ticket, item = self._items.popleft()
            ticket.inbox.put(item)
        self._is_putting = bool(self._items)
        if self._is_putting:
            loop.call_soon(self._put_slice, loop)


class Postings:
    """All loops of an engine's thread, on which all this is called.

    First tokens go at once. All others wait until the next step is launched: whoever
    reads them keeps the engine's thread from the interpreter, and the device would wait
    for the launch.

    Args:
        abort: told of tickets whose loop is closed.
    """

    def __init__(self, abort: Callable[[Sequence[Ticket]], None]) -> None:
        self._abort = abort
        # By loop, none of which is kept.
        self._of: MutableMapping[asyncio.AbstractEventLoop, Posting] = (
            weakref.WeakKeyDictionary()
        )
        self._held: list[Delivery] = []

    def hold(self, items: Sequence[Delivery]) -> None:
        """Keeps items for `post_held`."""
        self._held += items

    def post_held(self) -> None:
        """Posts what was held, if anything was."""
        held, self._held = self._held, []
        self.post(held)

    def post(self, items: Sequence[Delivery]) -> None:
        """Posts items, all those of one loop by one call."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = defaultdict(list)
        for item in items:
            by_loop[item[0].loop].append(item)
        for loop, of_loop in by_loop.items():
            posting = self._of.setdefault(loop, Posting())
            if not posting.post(loop, of_loop):
                self._abort([ticket for ticket, _ in of_loop])
