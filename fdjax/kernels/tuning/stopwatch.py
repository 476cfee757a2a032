"""How long a launch takes, of many that stand in a row."""

import statistics
import time
from collections.abc import Callable

import jax

from fdjax.notation import Array

REPEATS, SAMPLE_S = 7, 0.03
# A program is loaded, then captured in a graph; and a GPU that has waited for a
# compiler takes some tens of milliseconds to run at full clocks again (64 rows of 1,024
# tokens took 1.2 to 1.4 times as long without the last two of these).
_WARM = 4


def median_seconds(launch: Callable[[], Array]) -> float:
    """The median time of a launch.

    Args:
        launch: starts one, and returns what is there at its end. Programs shorter than
            some 0.1 ms take the host longer than the device.
    """
    launches, found = 2, list[float]()
    for _ in range(_WARM + REPEATS):
        start, done = time.perf_counter(), None
        for _ in range(launches):
            done = None  # at one address: a graph whose results move is made anew
            done = launch()
        jax.block_until_ready(done)
        found.append((time.perf_counter() - start) / launches)
        launches = int(SAMPLE_S / found[-1]) + 1
    return statistics.median(found[_WARM:])
