"""`Origin`: on whose behalf a sequence is, and how it stands among others."""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a sequence comes from; the samples of a request share one.

    Attributes:
        tenant: who asks, in a word that means nothing to the engine.
        client: from where; whose requests take turns where no tenant has a name.
        priority: lower ones go first, and are the last to be put back.
        salt: sequences of different salts share no keys and values.
        max_running: sequences of the tenant that may hold a row; `None` is no limit.
        max_queued: sequences of the tenant that may wait for one; `None` is no limit.
        leaves_room: there are other tenants: of the queue it may not take the last.
    """

    tenant: str = ""
    client: str = ""
    priority: int = 0
    salt: bytes = b""
    max_running: int | None = None
    max_queued: int | None = None
    leaves_room: bool = False

    @property
    def owner(self) -> str:
        """Whose the work is of reading a request, before it is a sequence."""
        return self.tenant or self.client
