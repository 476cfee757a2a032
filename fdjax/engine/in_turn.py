"""Calls of an executor that run in turn, while who asked for them does other work."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import jax

from fdjax.engine.executor import Executor
from fdjax.kernels.op import as_here

type ExecutorCall = Callable[[], object]


def wait_for(executor: Executor) -> None:
    """Waits until the last call has ended.

    Raises:
        jax.errors.JaxRuntimeError: it failed on the device, for want of memory perhaps.
    """
    jax.block_until_ready((executor.rules, executor.progress))


class InTurn:
    """A thread that runs calls in order, each when the one before has ended.

    Of two under way the operands would take memory twice. At the end of the `with`
    block all that may run have run; when one fails, or the block does, those behind it
    are left out.

    A program's first call takes 14 ms on an H200, most of it to build what launches
    hundreds of kernels, without Python's lock: who traces has that time.

    Args:
        executor: whose calls they are; nobody else uses it meanwhile.
        calls: all of them.
    """

    def __init__(self, executor: Executor, calls: Sequence[ExecutorCall]) -> None:
        self._executor = executor
        self._calls = calls
        self._num_begun = 0
        # Those asked are taken out: else an error would hold itself, and with it the
        # executor's memory, until Python's collector comes by.
        self._begun: deque[Future[None]] = deque()
        self._has_failed = False
        self._alike = as_here()

    def __enter__(self) -> "InTurn":
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
        try:
            if error is None:
                self._raise_what_failed(wait=True)
                wait_for(self._executor)
        finally:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, count: int) -> None:
        """The first `count` calls may run.

        Raises:
            Exception: one of them failed.
        """
        for call in self._calls[self._num_begun : count]:
            self._begun.append(self._pool.submit(self._run, call))
            self._num_begun += 1
        self._raise_what_failed(wait=False)

    def _run(self, call: ExecutorCall) -> None:
        if self._has_failed:
            return
        try:
            with self._alike():
                wait_for(self._executor)
                call()
        except BaseException:
            self._has_failed = True
            raise

    def _raise_what_failed(self, *, wait: bool) -> None:
        while self._begun and (wait or self._begun[0].done()):
            self._begun.popleft().result()
