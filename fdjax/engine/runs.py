"""`Runs`: jobs of one engine, driven by whoever reads their increments."""

import atexit
import contextlib
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import jax

from fdjax.engine.engine import Engine
from fdjax.engine.job import Job
from fdjax.engine.limits import Load
from fdjax.engine.request import Increment, Request


class Runs:
    """Several runs may be under way at once; whichever asks for more drives them all.

    Args:
        engine: stepped by nothing else.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boxes: dict[Job, deque[tuple[Job, Increment]]] = {}
        self._lost: set[Job] = set()
        _RUNS.add(self)

    def add(self, requests: Sequence[Request]) -> list[Job]:
        """Queues several requests, or none of them.

        Raises:
            QueueFullError: as many requests or tokens wait as may.
            RequestError: more than ever may.
        """
        count, tokens = len(requests), sum(len(one.prompt) for one in requests)
        self._engine.check_queue(Load(count, count, tokens))
        return [self._engine.add(request) for request in requests]

    def follow(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Increment]]:
        """Yields increments of some jobs as they come, until all have ended.

        A run that is closed before its end ends its jobs. A job that is aborted on the
        way may have increments left that were made before.

        Raises:
            RuntimeError: a step that another run asked for failed, or was interrupted,
                and some of these jobs ended with it.
        """
        box: deque[tuple[Job, Increment]] = deque()
        self._boxes.update(dict.fromkeys(jobs, box))
        left = list(jobs)
        try:
            while left or box:
                while box:
                    yield box.popleft()
                if not self._lost.isdisjoint(jobs):
                    raise RuntimeError(
                        "a step for other requests failed or was interrupted, and "
                        "ended all that were under way; ask again"
                    )
                left = [job for job in left if not job.ended]
                if left and not box:
                    self._deliver()
        finally:
            for job in jobs:
                self._engine.abort(job)
                self._boxes.pop(job, None)
                self._lost.discard(job)

    def close(self) -> None:
        """Ends all jobs."""
        for job in self._boxes:
            self._engine.abort(job)

    def _deliver(self) -> None:
        try:
            increments = self._engine.step()
        except BaseException:
            self._lost.update(job for job in self._boxes if not job.ended)
            self._engine.reset()
            raise
        for job, increment in increments:
            if job in self._boxes:
                self._boxes[job].append((job, increment))


_RUNS: weakref.WeakSet[Runs] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Before JAX ends: a thread of jaxlib 0.11 that still works aborts the process.

    And before modules are taken down, which a run that nobody ended would need then.
    """
    for runs in list(_RUNS):
        runs.close()
    # Errors of the device are told to who reads, and an engine's own thread may go on.
    with contextlib.suppress(RuntimeError):
        jax.block_until_ready(jax.live_arrays())
