"""How long a step has taken, for whoever watches an engine from another thread."""

import contextlib
import threading
import time
from collections.abc import Generator
from typing import Any

import jax.monitoring

from fdjax.engine.pipeline import LAUNCHES_AHEAD

# When each thread last began to trace, lower or compile a program.
_compiled_s: dict[int, float] = {}


def _note(event: str, value: float, **kwargs: Any) -> None:
    del value, kwargs
    if event.startswith("/jax/core/compile/"):
        _compiled_s[threading.get_ident()] = time.monotonic()


jax.monitoring.register_scalar_listener(_note)


class StepClock:
    """Times the steps of one thread; any thread may read it.

    A step that compiles takes as long as it takes, and so may those that wait for the
    first run of what was compiled: neither counts.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._began_s: float | None = None
        self._num_excused = 0

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """Times what is done inside."""
        self._num_excused = max(self._num_excused - 1, 0)
        self._thread = threading.get_ident()
        began_s = self._began_s = time.monotonic()
        try:
            yield
        finally:
            if self._compiled_since(began_s):
                self._num_excused = LAUNCHES_AHEAD + 1
            self._began_s = None

    @property
    def age_s(self) -> float:
        """Seconds of the step under way; 0 where there is none that counts."""
        began_s = self._began_s
        if began_s is None or self._num_excused or self._compiled_since(began_s):
            return 0.0
        return time.monotonic() - began_s

    def _compiled_since(self, began_s: float) -> bool:
        return _compiled_s.get(self._thread, began_s) > began_s
