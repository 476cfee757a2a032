"""Programs that are compiled beside each other, before the first of them runs.

XLA compiles a program in a second or less, mostly on one core; an engine has dozens.
"""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax

MOST_THREADS = 8


class Collected(Exception):
    """Instead of a call's result: its program is among those to compile."""


class Ahead:
    """Calls of jitted functions, and which of them only say what would be compiled."""

    def __init__(self) -> None:
        self._found: list[Callable[[], jax.stages.Lowered]] | None = None

    def run(self, function: Any, *operands: Any, **static: Any) -> Any:
        """The result of a jitted function.

        Raises:
            Collected: its program is collected; nothing is donated and nothing runs.
        """
        if self._found is None:
            return function(*operands, **static)
        self._found.append(lambda: function.lower(*operands, **static))
        raise Collected

    @contextmanager
    def collecting(self) -> Generator[list[Callable[[], jax.stages.Lowered]]]:
        """Inside a `with` block: calls put what lowers them into the list."""
        self._found = []
        try:
            yield self._found
        finally:
            self._found = None


def default_threads() -> int:
    """As many as leave the other half of the cores to XLA's own."""
    return min(MOST_THREADS, (os.cpu_count() or 1) // 2)


def compile_all(
    lowerings: Sequence[Callable[[], jax.stages.Lowered]], threads: int
) -> None:
    """Compiles programs; jit finds them when it is called with the same operands.

    They are traced in the calling thread, whose contexts say which implementations
    serve. When one fails, or the caller is interrupted, those not begun are left out.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
    try:
        for done in [pool.submit(lower().compile) for lower in lowerings]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
