"""`Keyring`: which keys open, and whose they are; the file is read again when asked."""

import dataclasses
import hmac
import logging
import pathlib
import time
from collections.abc import Sequence

from fdjax.errors import ConfigError
from fdjax.serve.http.accounts import Account, Clock
from fdjax.serve.http.api_key import check_distinct, digest_of, keys_of
from fdjax.serve.http.key_file import read_keys
from fdjax.serve.http.tenants import Tenant

_LOGGER = logging.getLogger(__name__)


class Keyring:
    """The keys of a server.

    Args:
        keys: without names. Where there are none, and no file, all are served.
        file: of more keys; see `key_file`.
        may_prioritise: requests of all tenants may have a `priority`.
        clock: seconds, by which quotas come back.

    Attributes:
        file: as given.
        tenants: of all keys, by name.
        is_read: the file is as it was read last; else it was broken, and the keys of
            before stay.

    Raises:
        ConfigError: a key cannot be used, or see `key_file.read_keys`.
    """

    def __init__(
        self,
        keys: Sequence[str] = (),
        file: pathlib.Path | None = None,
        *,
        may_prioritise: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.file = file
        self.is_read = True
        self.tenants: dict[str, Tenant] = {}
        self._keys = keys_of(keys)
        self._may_prioritise = may_prioritise
        self._clock = clock
        self._anonymous = Tenant(may_prioritise=may_prioritise)
        self._owners: list[tuple[bytes, Tenant]] = []
        self._read()

    @property
    def asks(self) -> bool:
        """Whether a key is wanted at all."""
        return bool(self._owners)

    def owner(self, key: bytes) -> Tenant | None:
        """Whose a key is; `None` where it opens nothing."""
        if not self.asks:
            return self._anonymous
        digest = digest_of(key)
        # All are compared, so that the time tells nothing of which one it is.
        found = [
            tenant
            for known, tenant in self._owners
            if hmac.compare_digest(digest, known)
        ]
        return found[0] if found else None

    def read_again(self) -> None:
        """Takes the file's keys as they are now; a broken file changes nothing.

        Whoever has no key any more is refused from now on; their requests that were
        taken before go on to their end. Who still has one has used what was used.
        """
        before = self.tenants
        try:
            self._read()
        except ConfigError as error:
            self.is_read = False
            _LOGGER.error("the API keys stay as they were: %s", error)
            return
        self.is_read = True
        fields = {
            "keys": len(self.tenants),
            "added": ",".join(sorted(self.tenants.keys() - before.keys())),
            "removed": ",".join(sorted(before.keys() - self.tenants.keys())),
        }
        _LOGGER.info("API keys read from %s", self.file, extra={"fields": fields})

    def _read(self) -> None:
        keys = [*self._keys, *(read_keys(self.file) if self.file else [])]
        check_distinct(keys)
        several = len({key.tenant.name for key in keys}) > 1
        opened = [(key.digests, self._opened(key.tenant, several)) for key in keys]
        self.tenants = {tenant.name: tenant for _, tenant in opened}
        self._owners = [
            (digest, tenant) for digests, tenant in opened for digest in digests
        ]

    def _opened(self, tenant: Tenant, several: bool) -> Tenant:
        """With the account that it has, or a new one."""
        known = self.tenants.get(tenant.name)
        account = known.account if known else Account(tenant.name, self._clock)
        account.limit(tenant.quotas)
        return dataclasses.replace(
            tenant,
            may_prioritise=tenant.may_prioritise or self._may_prioritise,
            account=account,
            among_others=several,
        )
