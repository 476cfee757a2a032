"""Waits for what another thread or process brings about."""

import time
from typing import Any


def wait_until(
    condition: Any, seconds: float = 60.0, fault: str = "it did not come true"
) -> None:
    """Fails, with what is wrong then, if it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, fault
        time.sleep(0.005)
