"""Programs that are compiled beside each other, and before they run.

XLA compiles a program in a second or less, mostly on one core; an engine has dozens.
"""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

MOST_THREADS = 8

type Lower = Callable[[], jax.stages.Lowered]


class Collected(Exception):
    """Instead of a call's result: its program is among those to compile."""


class Ahead:
    """Calls of jitted functions, and which of them only say what would be compiled."""

    def __init__(self) -> None:
        self._found: list[Lower] | None = None

    def of(self, function: Any, *, stays: int = 0) -> Any:
        """A jitted function; while programs are collected, what collects its own.

        Args:
            function: what is called.
            stays: its first operands that it does not donate, and nobody deletes. Of
                the others, what they are is enough: the arrays are donated, or take
                memory, until their program is compiled.

        Returns:
            What takes its operands. It raises `Collected` where it collects; nothing
            is donated then, and nothing runs.
        """
        found = self._found
        if found is None:
            return function

        def collect(*operands: Any, **static: Any) -> Any:
            alike = jax.tree.map(_alike, operands[stays:])
            # `operands` itself must not be kept: 187 MiB of a server's 256 rows.
            found.append(partial(function.lower, *operands[:stays], *alike, **static))
            raise Collected

        return collect

    @contextmanager
    def collecting(self) -> Generator[list[Lower]]:
        """Inside a `with` block: calls put what lowers them into the list."""
        self._found = []
        try:
            yield self._found
        finally:
            self._found = None


def _alike(operand: Any) -> Any:
    """What tells jit of an array all that it is compiled for."""
    if not isinstance(operand, jax.Array):
        return operand
    return jax.ShapeDtypeStruct(
        operand.shape,
        operand.dtype,
        sharding=operand.sharding if operand.committed else None,
        weak_type=operand.weak_type,
    )


def default_threads() -> int:
    """As many as leave the other half of the cores to XLA's own."""
    return min(MOST_THREADS, (os.cpu_count() or 1) // 2)


def compiled(lowerings: Sequence[Lower | None], threads: int) -> Generator[int]:
    """Compiles programs; jit finds them when it is called with the same operands.

    They are traced in the calling thread, whose contexts say which implementations
    serve. Those that JAX's folder of programs has are read by the threads, too: most
    of that is XLA's, which does not hold the interpreter's lock. When one fails, or
    the caller closes this, those not begun are left out.

    Args:
        lowerings: trace and lower one program each; `None` is one that is compiled.
        threads: that compile.

    Yields:
        How many are compiled, of the first ones without a gap: after each that has been
        traced, and then after each that was waited for.
    """
    begun: list[Future[Any] | None] = []
    done = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
    try:
        for lower in lowerings:
            begun.append(None if lower is None else pool.submit(lower().compile))
            while done < len(begun) and _has_ended(begun[done]):
                done += 1
            yield done
        for one in begun[done:]:
            if one is not None:
                one.result()
            done += 1
            yield done
    finally:
        pool.shutdown(cancel_futures=True)


def _has_ended(begun: Future[Any] | None) -> bool:
    """Whether a program is compiled.

    Raises:
        Exception: that failed.
    """
    if begun is None:
        return True
    if begun.done():
        begun.result()
        return True
    return False
