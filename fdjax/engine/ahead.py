"""Programs that are compiled beside each other, before the first of them runs.

XLA compiles a program in a second or less, mostly on one core; an engine has dozens.
"""

import gc
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.monitoring

MOST_THREADS = 8

_OF_THREAD = threading.local()


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


@contextmanager
def old_objects_apart() -> Generator[None]:
    """Inside a `with` block: the garbage collector looks through new objects alone.

    Tracing makes so many that it would look through all there are every few programs,
    which takes as long as to trace one. It goes on, as what a call leaves behind may
    hold the device's memory.
    """
    if gc.get_freeze_count():  # somebody else has set them apart, for longer
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def default_threads() -> int:
    """As many as leave the other half of the cores to XLA's own."""
    return min(MOST_THREADS, (os.cpu_count() or 1) // 2)


def compile_all(
    lowerings: Sequence[Callable[[], jax.stages.Lowered]],
    threads: int,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Compiles programs; jit finds them when it is called with the same operands.

    They are traced in the calling thread, whose contexts say which implementations
    serve. As long as JAX's folder of programs has them, that thread reads them, too:
    what others would do of it holds the interpreter's lock that tracing waits for.
    When one fails, or the caller is interrupted, those not begun are left out.

    Args:
        lowerings: trace and lower one program each.
        threads: that compile, from the first program on that is not in the folder.
        on_progress: called in the calling thread with the number of programs done.
    """
    report = on_progress or (lambda done: None)
    num_read = 0
    if jax.config.jax_compilation_cache_dir is not None:
        num_read = _read_kept(lowerings, report)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
    try:
        compiling: list[Future[jax.stages.Compiled]] = []
        for lower in lowerings[num_read:]:
            compiling.append(pool.submit(lower().compile))
            report(num_read + sum(one.done() for one in compiling))
        for one in compiling:
            one.result()
            report(num_read + sum(one.done() for one in compiling))
    finally:
        pool.shutdown(cancel_futures=True)


def _read_kept(
    lowerings: Sequence[Callable[[], jax.stages.Lowered]],
    report: Callable[[int], None],
) -> int:
    """Compiles up to the first that is not in JAX's folder, with it; how many.

    One that has been compiled before is neither read from there nor missed.
    """
    for done, lower in enumerate(lowerings, 1):
        before = _num_missed()
        lower().compile()
        report(done)
        if _num_missed() > before:
            return done
    return len(lowerings)


def _num_missed() -> int:
    """Programs that the calling thread did not find in JAX's folder."""
    return getattr(_OF_THREAD, "num_missed", 0)


def _note(event: str, **kwargs: Any) -> None:
    del kwargs
    if event == "/jax/compilation_cache/cache_misses":
        _OF_THREAD.num_missed = _num_missed() + 1


jax.monitoring.register_event_listener(_note)
