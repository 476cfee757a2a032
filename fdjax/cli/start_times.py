"""`StartTimes`: where the seconds of a server's start went, for its log."""

import os
import pathlib
import time


class StartTimes:
    """Seconds by what took them, since the process began; times in a row."""

    def __init__(self) -> None:
        self._last_s = time.monotonic() - _age_s()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """All since the last lap was this."""
        self.add(name, time.monotonic() - self._last_s)

    def add(self, name: str, seconds: float) -> None:
        """So many of the seconds since the last lap were this; the rest is open."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._last_s += seconds

    @property
    def total(self) -> float:
        """From the beginning to the last lap."""
        return sum(self.seconds.values())


def _age_s() -> float:
    """Seconds since this process began; 0 where the system does not say."""
    try:
        status = pathlib.Path("/proc/self/stat").read_text()
        ticks = int(status.rpartition(")")[2].split()[19])
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return 0.0
    return max(uptime_s - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
