"""What may wait for a row beside what waits, by the limits of queue and tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fdjax.engine.limits import NOTHING, Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.shares import check_share


@dataclass(frozen=True)
class Waiting:
    """What waits for a row, or is on its way to where it waits, at some moment.

    Attributes:
        load: all of it.
        tenants: the part of each that has any.
    """

    load: Load = NOTHING
    tenants: Mapping[str, Load] = field(default_factory=dict[str, Load])

    def of(self, tenant: str) -> Load:
        """One tenant's part."""
        return self.tenants.get(tenant, NOTHING)


NOBODY = Waiting()


def check_queue(
    limits: QueueLimits,
    more: Load,
    origin: Origin | None,
    *,
    waiting: Waiting,
    claimed: Waiting,
) -> None:
    """Refuses what may not wait beside what waits, all of it.

    Args:
        limits: of the queue.
        more: what is to wait.
        origin: of it; `None` is nobody's.
        waiting: what waits.
        claimed: what is on its way, besides.

    Raises:
        QueueFullError: it may later; `QuotaError` where it is the tenant's limit.
        RequestError: it may never.
    """
    counted = None
    if origin is not None:
        of_tenant = waiting.of(origin.tenant).plus(claimed.of(origin.tenant))
        check_share(origin, more.samples, waiting=of_tenant.samples)
        if origin.leaves_room:
            counted = of_tenant
    limits.check(waiting.load.plus(claimed.load), more, counted)
