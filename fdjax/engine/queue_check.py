"""What may wait for a row beside what waits, by the limits of queue and tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fdjax.engine.limits import NOTHING, Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.shares import check_share


@dataclass(frozen=True)
class Waiting:
    """What waits for a row, at some moment.

    Attributes:
        load: all of it.
        tenants: the part of each that has any.
    """

    load: Load = NOTHING
    tenants: Mapping[str, Load] = field(default_factory=dict[str, Load])


def check_queue(
    limits: QueueLimits,
    more: Load,
    origin: Origin | None,
    *,
    waiting: Load,
    of_tenant: Load,
    claimed: Load = NOTHING,
    own: Load = NOTHING,
) -> None:
    """Refuses what may not wait beside what waits, all of it.

    Args:
        limits: of the queue.
        more: what is to wait.
        origin: of it; nobody's by default.
        waiting: what waits.
        of_tenant: of that, the part of the same tenant.
        claimed: what is on its way, besides.
        own: of that, the part of the same tenant.

    Raises:
        QueueFullError: it may later; `QuotaError` where it is the tenant's limit.
        RequestError: it may never.
    """
    counted = None
    if origin is not None:
        check_share(origin, more.samples, waiting=of_tenant.samples + own.samples)
        if origin.leaves_room:
            counted = of_tenant.plus(own)
    limits.check(waiting.plus(claimed), more, counted)
