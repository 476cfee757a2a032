"""Gives memory that nothing uses back to the system while nobody is served.

Large bodies leave holes among what stays. glibc keeps those for the next ones, in an
arena for each of many threads, and gives back only what lies at the end of the first.
"""

import ctypes
import gc
import time
from collections.abc import Callable

IDLE_SECONDS = 2.0
"""Without a request, until `fdjax serve` gives memory back."""


def give_back() -> None:
    """Collects cycles, and gives free pages back; the latter with glibc alone."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


class IdleMemory:
    """Has memory given back once in every pause, the one before the first request too.

    A request that comes meanwhile waits for it: some milliseconds, and more where much
    has to be collected.

    Args:
        give: gives memory back.
        seconds: without a request until it does.
        clock: seconds since some time.
    """

    def __init__(
        self,
        give: Callable[[], None],
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._give = give
        self._seconds = seconds
        self._clock = clock
        self._since = clock()
        self._begun = 0
        self._given = False

    def watch(self, *, begun: int, busy: bool) -> None:
        """Looks whether it is time; called again and again.

        Args:
            begun: requests so far: one may have come and gone since the last call.
            busy: some are served.
        """
        if busy or begun != self._begun:
            self._begun, self._since, self._given = begun, self._clock(), False
        elif not self._given and self._clock() - self._since >= self._seconds:
            self._given = True
            self._give()
