"""Two lanes of threads: what is quick never waits for what is slow."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from fdjax.errors import EngineDeadError
from fdjax.serve.fair_order import FairOrder

type _Work = tuple[Future[Any], Callable[[], Any]]


class FairThreads:
    """Threads for work of several owners; see `FairOrder`.

    Args:
        count: of threads.
        name: of them.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, name)
        self._lock = threading.Lock()
        self._order = FairOrder[_Work]()

    def submit[T](
        self,
        work: Callable[[], T],
        *,
        owner: str = "",
        rank: float = 0.0,
        since: float = 0.0,
        size: float | None = None,
    ) -> Future[T]:
        """Has work done; whoever cancels it in time has it not.

        Args:
            work: of no arguments.
            owner: see `FairOrder.add`, as for the others.
            rank: as above.
            since: as above.
            size: as above.

        Raises:
            RuntimeError: this was closed.
        """
        future = Future[T]()
        with self._lock:  # a thread takes what is next, which need not be this
            self._pool.submit(self._do_next)
            self._order.add(
                (future, work), owner=owner, rank=rank, since=since, size=size
            )
        return future

    def close(self, *, wait: bool = False) -> None:
        """Begins nothing more, and cancels what was not begun.

        Args:
            wait: for what was begun, or given, which is then done.
        """
        self._pool.shutdown(wait=wait, cancel_futures=not wait)
        with self._lock:
            while len(self._order):
                self._order.pop()[1][0].cancel()

    def _do_next(self) -> None:
        with self._lock:
            owner, (future, work) = self._order.pop()
        if not future.set_running_or_notify_cancel():
            return
        start_s = time.monotonic()
        try:
            done = partial(future.set_result, work())
        except BaseException as error:
            done = partial(future.set_exception, error)
        with self._lock:  # before anybody is told, who may give more
            self._order.spend(owner, time.monotonic() - start_s)
        done()


async def finished[T](
    threads: FairThreads,
    work: Callable[[], T],
    *,
    owner: str = "",
    size: float | None = None,
) -> T:
    """What comes of work, for a task of asyncio: one that is cancelled cancels it.

    Args:
        threads: that do it.
        work: see `FairThreads.submit`, as for the others.
        owner: as above.
        size: as above.

    Raises:
        EngineDeadError: the threads were closed.
    """
    try:
        future = threads.submit(work, owner=owner, size=size)
    except RuntimeError as error:
        raise _closed() from error
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _closed() from error  # it was the work that was cancelled


def _closed() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")


class Lanes:
    """A bounded number of threads for work that lets others go on meanwhile.

    Whoever gives work knows which lane is its, and cancels its future when nobody
    waits for it any more.

    Args:
        name: of the threads.
        quick: threads for work of milliseconds.
        slow: threads for the rest.
    """

    def __init__(self, name: str, *, quick: int, slow: int) -> None:
        self.quick = FairThreads(quick, f"{name}-quick")
        self.slow = FairThreads(slow, f"{name}-slow")

    def close(self) -> None:
        """Begins nothing more, and waits for nothing."""
        for threads in (self.quick, self.slow):
            threads.close()
