"""Calls of an executor that run in turn, while who asked for them does other work."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import jax

from fdjax.engine.executor import Executor
from fdjax.kernels.op import as_here

type Call = Callable[[], object]


def wait_for(executor: Executor) -> None:
    """Waits until the last call has ended.

    Raises:
        jax.errors.JaxRuntimeError: it failed on the device, for want of memory perhaps.
    """
    jax.block_until_ready((executor.rules, executor.progress))


class InTurn:
    """A thread that runs calls in order, each when the one before has ended.

    Of two under way the operands would take memory twice. At the end of the `with`
    block all that may run have run; after an error those not begun are left out.

    To build what launches a program of hundreds of kernels, which its first call does,
    takes 14 ms of which 4 are Python's (124 programs on an H200): the others are free
    for who traces.

    Args:
        executor: whose calls they are; nobody else uses it meanwhile.
        calls: all of them.
    """

    def __init__(self, executor: Executor, calls: Sequence[Call]) -> None:
        self._executor = executor
        self._calls = calls
        self._begun: list[Future[None]] = []
        self._num_ended = 0
        self._alike = as_here()

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="run")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the thread; waits for the calls that may run."""
        del kind, trace
        self._pool.shutdown(cancel_futures=error is not None)
        if error is None:
            self._raise_what_failed(wait=True)
            wait_for(self._executor)

    def begin(self, count: int) -> None:
        """The first `count` calls may run.

        Raises:
            Exception: one of them failed.
        """
        for call in self._calls[len(self._begun) : count]:
            self._begun.append(self._pool.submit(self._run, call))
        self._raise_what_failed(wait=False)

    def _run(self, call: Call) -> None:
        with self._alike():
            wait_for(self._executor)
            call()

    def _raise_what_failed(self, *, wait: bool) -> None:
        for one in self._begun[self._num_ended :]:
            if not wait and not one.done():
                return
            one.result()
            self._num_ended += 1
