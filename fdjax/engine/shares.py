"""`Shares`: what each tenant has of the rows and of the queue, and may have."""

from dataclasses import dataclass

from fdjax.engine.limits import NOTHING, Load
from fdjax.engine.origin import Origin
from fdjax.errors import QuotaError, RequestError


@dataclass
class TenantShare:
    """What one tenant has at this moment.

    Attributes:
        num_running: its sequences that hold a row.
        waiting: those that wait for one.
        max_running: that may hold a row, by its last request; `None` is no limit.
    """

    num_running: int = 0
    waiting: Load = NOTHING
    max_running: int | None = None

    @property
    def is_full(self) -> bool:
        """It may hold no more rows."""
        return self.max_running is not None and self.num_running >= self.max_running


class Shares:
    """The shares of all tenants that have any sequence."""

    def __init__(self) -> None:
        self._shares: dict[str, TenantShare] = {}

    def of(self, tenant: str) -> TenantShare:
        """One tenant's; whoever has no sequence has none of anything."""
        return self._shares.get(tenant) or TenantShare()

    def seen(self) -> dict[str, tuple[int, int]]:
        """Sequences that run and sequences that wait, by tenant; any thread may ask."""
        shares = self._shares.copy()
        return {name: (s.num_running, s.waiting.samples) for name, s in shares.items()}

    def waiting(self) -> dict[str, Load]:
        """What waits, by tenant that has any; any thread may ask."""
        shares = self._shares.copy()
        return {name: s.waiting for name, s in shares.items() if s.waiting != NOTHING}

    def come(self, origin: Origin, load: Load) -> None:
        """Counts what waits from now on."""
        share = self._shares.setdefault(origin.tenant, TenantShare())
        share.max_running = origin.max_running
        share.waiting = share.waiting.plus(load)

    def leave(self, origin: Origin, load: Load) -> None:
        """Counts what waits no more."""
        share = self._shares[origin.tenant]
        share.waiting = share.waiting.minus(load)
        self._forget(origin.tenant)

    def hold(self, origin: Origin, change: int) -> None:
        """Counts a row that a sequence has got, or has given up."""
        share = self._shares.setdefault(origin.tenant, TenantShare())
        share.num_running += change
        self._forget(origin.tenant)

    def _forget(self, tenant: str) -> None:
        share = self._shares[tenant]
        if not share.num_running and not share.waiting.samples:
            del self._shares[tenant]


def check_share(origin: Origin, num_sequences: int, *, waiting: int) -> None:
    """Refuses sequences of which too many of one tenant would wait.

    Args:
        origin: of the sequences.
        num_sequences: that would like to wait.
        waiting: the tenant's that wait, or are on their way.

    Raises:
        QuotaError: they may later.
        RequestError: they may never.
    """
    limit = origin.max_queued
    if limit is None or waiting + num_sequences <= limit:
        return
    told = f"max_queued_samples of {origin.tenant!r} is {limit}"
    if num_sequences > limit:
        raise RequestError(
            f"n asks for {num_sequences} samples to wait together, but {told}; "
            "ask for less at once"
        )
    raise QuotaError(
        f"{told}, of which {waiting} wait, and this request has {num_sequences}"
    )
