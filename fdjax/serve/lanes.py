"""Two lanes of threads: what is quick never waits for what is slow."""

from concurrent.futures import ThreadPoolExecutor


class Lanes:
    """A bounded number of threads for work that lets others go on meanwhile.

    First come, first served within a lane. Whoever gives work knows which lane is its,
    and cancels its future when nobody waits for it any more.

    Args:
        name: of the threads.
        quick: threads for work of milliseconds.
        slow: threads for the rest.
    """

    def __init__(self, name: str, *, quick: int, slow: int) -> None:
        self.quick = ThreadPoolExecutor(quick, f"{name}-quick")
        self.slow = ThreadPoolExecutor(slow, f"{name}-slow")

    def close(self) -> None:
        """Begins nothing more, and waits for nothing."""
        for pool in (self.quick, self.slow):
            pool.shutdown(wait=False, cancel_futures=True)
