"""`Tenant`: who asks, as every path finds them in the state of a request."""

import hashlib
from dataclasses import dataclass, field

from starlette.types import Scope

from fdjax.engine.origin import Origin
from fdjax.serve.http.accounts import Account, Quotas
from fdjax.serve.http.addresses import address_of
from fdjax.serve.http.errors import ApiError


@dataclass(frozen=True)
class Tenant:
    """Who asks, and what they may.

    Attributes:
        name: for logs and metrics, and what the engine tells tenants apart by; never
            a key. Whoever asks without a key is called "".
        may_prioritise: a priority other than 0 is taken from them.
        quotas: how much they may use.
        cache_salt: tenants of one share cached prefixes; `None` shares with nobody.
        account: what they have used.
        among_others: there are keys of other names.
    """

    name: str = ""
    may_prioritise: bool = False
    quotas: Quotas = field(default_factory=Quotas)
    cache_salt: str | None = None
    account: Account = field(
        default_factory=lambda: Account(""), compare=False, repr=False
    )
    among_others: bool = False

    def origin(self, priority: int, salt: str, client: str = "") -> Origin:
        """On whose behalf the sequences of a request are that asks for these.

        Args:
            priority: that it asks for.
            salt: that it asks for.
            client: see `client_of`.

        Raises:
            ApiError: they may not have the priority.
        """
        if priority and not self.may_prioritise:
            raise ApiError(
                f"priority is {priority}, but only 0 is taken here; leave it out, or "
                "ask the operator, who can allow it",
                param="priority",
            )
        return Origin(
            tenant=self.name,
            client=client,
            priority=priority,
            salt=self._salt(salt),
            max_running=self.quotas.max_running_samples,
            max_queued=self.quotas.max_queued_samples,
            leaves_room=self.among_others,
        )

    def _salt(self, asked: str) -> bytes:
        """Of the cached prefixes of a request that asks for a salt itself.

        Whatever it asks for, it is another tenant's only where both have one
        `cache_salt`: what the tenant adds has one length, and comes first.
        """
        if not self.name:
            return asked.encode()
        shared = self.cache_salt is not None
        own = f"salt {self.cache_salt}" if shared else f"name {self.name}"
        return hashlib.sha256(own.encode()).digest() + asked.encode()


def attach(scope: Scope, tenant: Tenant) -> None:
    """Says who asks, for all that serve the request later."""
    scope.setdefault("state", {})["tenant"] = tenant


def tenant_of(scope: Scope) -> Tenant:
    """Who asks: said by `keys.ApiKeys`, which every request has passed."""
    return scope["state"]["tenant"]


def found_tenant(scope: Scope) -> Tenant:
    """Who asks; nobody where it is not known."""
    return scope.get("state", {}).get("tenant") or Tenant()


def name_of(scope: Scope) -> str:
    """The name of who asks; "" where nobody was let in, or all are."""
    tenant = scope["state"].get("tenant")
    return tenant.name if tenant else ""


def client_of(scope: Scope) -> str:
    """Where a request comes from; those behind one proxy are one client."""
    client = scope.get("client")
    return address_of(client[0]) if client else ""


def owner_of(scope: Scope) -> str:
    """Who takes turns with others where a request is read: see `Origin.owner`."""
    return name_of(scope) or client_of(scope)


def origin_of(scope: Scope, priority: int | None, salt: str | None) -> Origin:
    """On whose behalf the sequences of a request are: see `Tenant.origin`.

    Raises:
        ApiError: it asks for a priority that it may not have.
    """
    return tenant_of(scope).origin(priority or 0, salt or "", client_of(scope))
