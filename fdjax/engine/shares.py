"""`Shares`: what each tenant has of the rows and of the queue, and may have."""

from dataclasses import dataclass

from fdjax.engine.origin import Origin
from fdjax.errors import QuotaError, RequestError


@dataclass
class Share:
    """What one tenant has at this moment.

    Attributes:
        num_running: its jobs that hold a row.
        num_waiting: those that wait for one.
        max_running: that may hold a row, by its last request; `None` is no limit.
    """

    num_running: int = 0
    num_waiting: int = 0
    max_running: int | None = None

    @property
    def is_full(self) -> bool:
        """It may hold no more rows."""
        return self.max_running is not None and self.num_running >= self.max_running


class Shares:
    """The shares of all tenants that have any job."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}

    def of(self, tenant: str) -> Share:
        """One tenant's; whoever has no job has none of anything."""
        return self._shares.get(tenant) or Share()

    def seen(self) -> dict[str, tuple[int, int]]:
        """Jobs that run and jobs that wait, by tenant; any thread may ask."""
        shares = self._shares.copy()
        return {name: (s.num_running, s.num_waiting) for name, s in shares.items()}

    def come(self, origin: Origin) -> None:
        """Counts a job that waits from now on."""
        share = self._shares.setdefault(origin.tenant, Share())
        share.max_running = origin.max_running
        share.num_waiting += 1

    def leave(self, origin: Origin) -> None:
        """Counts a job that waits no more."""
        self._shares[origin.tenant].num_waiting -= 1
        self._forget(origin.tenant)

    def hold(self, origin: Origin, change: int) -> None:
        """Counts a row that a job has got, or has given up."""
        share = self._shares.setdefault(origin.tenant, Share())
        share.num_running += change
        self._forget(origin.tenant)

    def check(self, origin: Origin, num_jobs: int) -> None:
        """Refuses jobs of which too many of one tenant would wait.

        Raises:
            QuotaError: they may later.
            RequestError: they may never.
        """
        limit, waiting = origin.max_queued, self.of(origin.tenant).num_waiting
        if limit is None or waiting + num_jobs <= limit:
            return
        told = f"max_queued_samples of {origin.tenant!r} is {limit}"
        if num_jobs > limit:
            raise RequestError(
                f"n asks for {num_jobs} samples to wait together, but {told}; ask for "
                "less at once"
            )
        raise QuotaError(
            f"{told}, of which {waiting} wait, and this request has {num_jobs}"
        )

    def _forget(self, tenant: str) -> None:
        share = self._shares[tenant]
        if not share.num_running and not share.num_waiting:
            del self._shares[tenant]
