"""What an engine has counted, for whoever watches it from another thread."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from fdjax.engine.awaited import copy_ahead
from fdjax.engine.scheduler import Scheduler
from fdjax.generate.softmax_counts import SoftmaxCounts, SoftmaxStatistics
from fdjax.memory.kv import KVLayout

_COPIES_EVERY_S = 1.0


@dataclass(frozen=True)
class EngineStatistics:
    """One look at an engine; what is not of this moment is counted since its start.

    Attributes:
        num_running: requests that hold a row, at this moment.
        num_waiting: requests without a row, at this moment.
        page_size: tokens of a page.
        num_pages: of the KV array.
        num_held_pages: held by requests that run, at this moment; not those whose
            contents are only kept because they may be found again.
        num_preemptions: requests put back into the queue because pages ran out, or
            others had a better right to the row.
        num_queried_tokens: tokens of requests let in, whose beginnings were looked up.
        num_cached_tokens: tokens that were found, and not computed.
        softmax: of decoding, as of about a second ago.
        tenants: requests that run and that wait, by tenant, at this moment; not those
            of tenants that have none.
        boundary: one past the highest page held, at this moment; steps compute above.
        fragmentation: share of the pages below it that nobody holds, at this moment.
        num_moved_pages: pages moved down for steps to compute where they were.
        num_put_back_for_room: of `num_preemptions`, those for want of what steps
            borrow, where there were pages for the requests themselves.
        num_borrowed_pages: at the end of the KV array, by the largest call of the last
            step launched; 0 where nothing runs.
    """

    num_running: int
    num_waiting: int
    page_size: int
    num_pages: int
    num_held_pages: int
    num_preemptions: int
    num_queried_tokens: int
    num_cached_tokens: int
    softmax: SoftmaxStatistics
    tenants: Mapping[str, tuple[int, int]]
    boundary: int
    fragmentation: float
    num_moved_pages: int
    num_put_back_for_room: int
    num_borrowed_pages: int

    @staticmethod
    def of(
        scheduler: Scheduler, layout: KVLayout, softmax: SoftmaxStatistics
    ) -> "EngineStatistics":
        """What is to be seen now; another number may be a step later."""
        pool = scheduler.pool
        return EngineStatistics(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            page_size=layout.page_size,
            num_pages=pool.num_pages,
            num_held_pages=pool.num_pages - pool.num_free,
            num_preemptions=scheduler.num_preemptions,
            num_queried_tokens=scheduler.prefixes.num_queried_tokens,
            num_cached_tokens=scheduler.prefixes.num_cached_tokens,
            softmax=softmax,
            tenants=scheduler.shares.seen(),
            boundary=pool.boundary,
            fragmentation=pool.fragmentation,
            num_moved_pages=scheduler.room.num_moved,
            num_put_back_for_room=scheduler.room.num_put_back,
            num_borrowed_pages=scheduler.room.num_borrowed if scheduler.running else 0,
        )


class SoftmaxWatch:
    """The softmax's counts of about a second ago, for which nobody waits.

    The counts are on the device, and donated to the next launch: whoever wants to read
    them without holding it up reads a copy. The engine's thread makes copies, any
    thread reads them.

    Args:
        num_heads: query heads of a layer.
        num_layers: of the model.
    """

    def __init__(self, *, num_heads: int, num_layers: int) -> None:
        self._num_heads = num_heads
        self._copy: SoftmaxCounts | None = None
        self._next_s = 0.0
        self._read = SoftmaxStatistics(0, (0,) * num_layers)

    def look(self, counts: SoftmaxCounts | None, *, at_once: bool) -> None:
        """Copies the counts if it is time to, or at once; does not wait.

        Args:
            counts: of the last launch; `None` with the synchronised softmax.
            at_once: there may be no launch, and so no look, for a long time.
        """
        now_s = time.monotonic()
        if counts is None or (now_s < self._next_s and not at_once):
            return
        self._next_s = now_s + _COPIES_EVERY_S
        copy = jax.device_put(counts, may_alias=False)
        copy_ahead(copy)
        self._copy = copy

    def read(self) -> SoftmaxStatistics:
        """The last copy's counts, once the device has made it."""
        copy = self._copy
        arrays = jax.tree.leaves(copy)
        try:
            # jaxlib 0.11.2 may crash when one is asked that is not there any more.
            if any(array.is_deleted() for array in arrays):
                self._copy = None
            elif copy is not None and all(array.is_ready() for array in arrays):
                self._read = copy.read(num_heads=self._num_heads)
                self._copy = None
        except RuntimeError:  # a device that has failed: the engine's thread tells it
            self._copy = None
        return self._read
