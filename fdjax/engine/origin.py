"""`Origin`: on whose behalf a sequence is, and how it stands among others."""

from dataclasses import dataclass

from fdjax.errors import RequestError


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

    def check_rows(self, num_rows: int) -> None:
        """Refuses a beam search that needs more rows than its tenant may ever hold.

        Raises:
            RequestError: it does.
        """
        limit = self.max_running
        if limit is not None and num_rows > max(limit, 1):
            raise RequestError(
                f"beam_width is {num_rows}, but max_running_samples of "
                f"{self.tenant!r} is {limit}; use fewer beams"
            )
