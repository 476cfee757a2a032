"""`Runs`: sequences of one engine, driven by whoever reads their increments."""

import atexit
import contextlib
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import jax

from fdjax.engine.engine import Engine
from fdjax.engine.limits import Load
from fdjax.engine.request import Increment, Request, Tried
from fdjax.engine.sequence import EngineSequence


class Runs:
    """Several runs may be under way at once; whichever asks for more drives them all.

    Args:
        engine: stepped by nothing else.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boxes: dict[EngineSequence, deque[tuple[EngineSequence, Increment]]] = {}
        self._lost: set[EngineSequence] = set()
        _RUNS.add(self)

    def add(self, requests: Sequence[Request]) -> list[EngineSequence]:
        """As `add_samples`, of prompts that have one sample each."""
        return self.add_samples([[request] for request in requests])

    def add_samples(self, prompts: Sequence[Sequence[Request]]) -> list[EngineSequence]:
        """Queues the samples of several prompts, or none of them.

        Args:
            prompts: for each, what `Engine.add_samples` takes.

        Returns:
            The sequences of the first prompt, then those of the next.

        Raises:
            QueueFullError: as many requests or tokens wait as may.
            RequestError: more than ever may.
        """
        requests = [request for samples in prompts for request in samples]
        count, tokens = len(requests), sum(len(one.prompt) for one in requests)
        self._engine.check_queue(Load(count, count, tokens))
        added = [self._engine.add_samples(samples) for samples in prompts]
        return [sequence for samples in added for sequence in samples]

    def follow(
        self, sequences: Sequence[EngineSequence]
    ) -> Iterator[tuple[EngineSequence, Increment]]:
        """Yields increments of some sequences as they come, until all have ended.

        A run that is closed before its end ends its sequences. A sequence that is
        aborted on the way may have increments left that were made before.

        Raises:
            RuntimeError: a step that another run asked for failed, or was interrupted,
                and some of these sequences ended with it.
        """
        box: deque[tuple[EngineSequence, Increment]] = deque()
        self._boxes.update(dict.fromkeys(sequences, box))
        left = list(sequences)
        try:
            while left or box:
                while box:
                    yield box.popleft()
                if not self._lost.isdisjoint(sequences):
                    raise RuntimeError(
                        "a step for other requests failed or was interrupted, and "
                        "ended all that were under way; ask again"
                    )
                left = [sequence for sequence in left if not sequence.ended]
                if left and not box:
                    self._deliver()
        finally:
            for sequence in sequences:
                self._engine.abort(sequence)
                self._boxes.pop(sequence, None)
                self._lost.discard(sequence)

    def close(self) -> None:
        """Ends all sequences."""
        for sequence in self._boxes:
            self._engine.abort(sequence)

    def _deliver(self) -> None:
        try:
            increments = self._engine.step()
        except BaseException:
            self._lost.update(
                sequence for sequence in self._boxes if not sequence.ended
            )
            self._engine.reset()
            raise
        for sequence, increment in increments:
            # What searches compute is for those who count it; here nobody does.
            if sequence in self._boxes and not isinstance(increment, Tried):
                self._boxes[sequence].append((sequence, increment))


_RUNS: weakref.WeakSet[Runs] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Before JAX ends: a thread of jaxlib 0.11 that still works aborts the process.

    And before modules are taken down, which a run that nobody ended would need then.
    """
    for runs in list(_RUNS):
        runs.close()
    # Errors of the device are told to who reads, and an engine's own thread may go on.
    # Where JAX has no device it says so once more, by an assertion.
    with contextlib.suppress(RuntimeError, AssertionError):
        jax.block_until_ready(jax.live_arrays())
