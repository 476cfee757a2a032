"""`Keyring`: which keys open, and whose they are; the file is read again when asked."""

import asyncio
import dataclasses
import hmac
import logging
import pathlib
import time
from collections.abc import Mapping, Sequence

from fdjax.errors import ConfigError
from fdjax.serve.http.accounts import Account, Clock
from fdjax.serve.http.api_key import ApiKey, check_distinct, digest_of, keys_of
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
        # Of those who have no key any more, until what they used has come back.
        self._left: dict[str, Account] = {}
        self._is_reading = self._is_stale = False
        self._take(self._found())

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
        taken before go on to their end. Who still has one has used what was used, and
        so has who had one.
        """
        self._take_if_sound(self._tried())

    async def read_beside(self) -> None:
        """`read_again` while all else goes on: to read a file may take seconds.

        Where it is being read, it is read once more for all who ask meanwhile.
        """
        self._is_stale = True
        while self._is_stale and not self._is_reading:
            self._is_stale, self._is_reading = False, True
            try:
                self._take_if_sound(await asyncio.to_thread(self._tried))
            finally:
                self._is_reading = False

    def _found(self) -> list[ApiKey]:
        keys = [*self._keys, *(read_keys(self.file) if self.file else [])]
        check_distinct(keys)
        return keys

    def _tried(self) -> list[ApiKey] | ConfigError:
        try:
            return self._found()
        except ConfigError as error:
            return error

    def _take_if_sound(self, found: list[ApiKey] | ConfigError) -> None:
        self.is_read = not isinstance(found, ConfigError)
        if isinstance(found, ConfigError):
            _LOGGER.error("the API keys stay as they were: %s", found)
            return
        before = self.tenants
        self._take(found)
        fields = {
            "keys": len(self.tenants),
            "added": ",".join(sorted(self.tenants.keys() - before.keys())),
            "removed": ",".join(sorted(before.keys() - self.tenants.keys())),
        }
        _LOGGER.info("API keys read from %s", self.file, extra={"fields": fields})

    def _take(self, keys: Sequence[ApiKey]) -> None:
        several = len({key.tenant.name for key in keys}) > 1
        known = {name: tenant.account for name, tenant in self.tenants.items()}
        accounts = self._left | known
        opened = [
            (key.digests, self._opened(key.tenant, several, accounts)) for key in keys
        ]
        self.tenants = {tenant.name: tenant for _, tenant in opened}
        self._owners = [
            (digest, tenant) for digests, tenant in opened for digest in digests
        ]
        self._left = {
            name: account
            for name, account in accounts.items()
            if name not in self.tenants and account.owes
        }

    def _opened(
        self, tenant: Tenant, several: bool, accounts: Mapping[str, Account]
    ) -> Tenant:
        """With the account that it has, or a new one."""
        account = accounts.get(tenant.name) or Account(tenant.name, self._clock)
        account.limit(tenant.quotas)
        return dataclasses.replace(
            tenant,
            may_prioritise=tenant.may_prioritise or self._may_prioritise,
            account=account,
            among_others=several,
        )
