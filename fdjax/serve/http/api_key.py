"""`ApiKey`: keys as the server knows them, by what they hash to."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fdjax.errors import ConfigError
from fdjax.serve.http.tenants import Tenant


@dataclass(frozen=True)
class ApiKey:
    """Keys that one tenant may bring, as the server knows them.

    Attributes:
        tenant: whose they are.
        digests: SHA-256 of each.
    """

    tenant: Tenant
    digests: tuple[bytes, ...]


def digest_of(key: bytes) -> bytes:
    """Of one length for all keys, so that comparing them does not tell theirs."""
    return hashlib.sha256(key).digest()


def keys_of(texts: Sequence[str]) -> list[ApiKey]:
    """Keys that have no names: their tenants are called by their places.

    Raises:
        ConfigError: see `check_key`.
    """
    for text in texts:
        check_key(text, "an API key")
    return [
        ApiKey(Tenant(f"key-{place}"), (digest_of(text.encode()),))
        for place, text in enumerate(texts, 1)
    ]


def check_key(key: str, where: str) -> None:
    """Refuses a key that nobody could send, and one that whoever sends none brings.

    Args:
        key: no message has it in it.
        where: it stands, for the message.

    Raises:
        ConfigError: it is blank, or not what a header can hold.
    """
    if not key.strip():
        raise ConfigError(
            f"{where} is empty: everybody would be served; give a key, or leave it out"
        )
    if key != key.strip() or not key.isprintable():
        raise ConfigError(
            f"{where} begins or ends with white space, or has characters that cannot "
            "be printed, which no header could bring; give another key"
        )


def check_distinct(keys: Sequence[ApiKey]) -> None:
    """Refuses keys that do not tell whose they are.

    Raises:
        ConfigError: two tenants have one name, or one key.
    """
    names = Counter(key.tenant.name for key in keys)
    digests = Counter(digest for key in keys for digest in key.digests)
    for key in keys:
        name = key.tenant.name
        if names[name] > 1:
            raise ConfigError(f"two keys are called {name!r}; change one's name")
        if any(digests[digest] > 1 for digest in key.digests):
            raise ConfigError(
                f"the key of {name!r} is written twice, and would not tell who asks; "
                "make another"
            )
