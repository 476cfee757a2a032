"""An engine's weights and its programs, which are compiled while weights are loaded."""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdjax.engine.engine import Engine
from fdjax.models.decoder import Decoder
from fdjax.models.weights import Progress
from fdjax.serve.switching import switch_often


@runtime_checkable
class Loader(Protocol):
    """Loads weights."""

    def __call__(self, *, on_progress: Progress | None) -> Decoder:
        """See `fdjax.serve.loading.load_decoder`."""
        ...


@dataclass(frozen=True)
class Spent:
    """What a start was spent on.

    Attributes:
        weights_s: seconds until the weights were there.
        programs_s: seconds that programs took longer.
        num_programs: 0 where none was asked for.
    """

    weights_s: float
    programs_s: float = 0.0
    num_programs: int = 0


def woken(
    make: Callable[[Decoder], Engine],
    declared: Decoder,
    load: Loader,
    on_progress: Progress | None,
    on_programs: Callable[[int, int], None],
) -> tuple[Engine, Spent]:
    """An engine with its programs, which begin while its weights are on their way.

    Args:
        make: an engine of a model.
        declared: the model, not loaded.
        load: loads it, in another thread, which has ended when this returns.
        on_progress: see `load_model`.
        on_programs: as above.

    Raises:
        CheckpointError: the files do not hold the weights.
    """
    begin_s, there_s = time.monotonic(), list[float]()
    switch_often()
    with _loading(load, on_progress) as weights:
        weights.add_done_callback(lambda _: there_s.append(time.monotonic()))
        engine = make(declared)
        num_programs = engine.warm_up(on_progress=on_programs, weights=weights)
    end_s = time.monotonic()
    return engine, Spent(there_s[0] - begin_s, end_s - there_s[0], num_programs)


class _NotWantedError(Exception):
    """Ends loading in the middle."""


@contextmanager
def _loading(load: Loader, on_progress: Progress | None) -> Generator[Future[Decoder]]:
    """Inside a `with` block: another thread loads; it has ended when the block has."""
    left = threading.Event()

    def report(done_bytes: int, total_bytes: int, path: str) -> None:
        if left.is_set():
            raise _NotWantedError
        if on_progress is not None:
            on_progress(done_bytes, total_bytes, path)

    with ThreadPoolExecutor(1, thread_name_prefix="load") as beside:
        try:
            yield beside.submit(load, on_progress=report)
        finally:
            left.set()
