"""A file of API keys: the name of each, and what its holder may ask for."""

import logging
import pathlib
import stat
import tomllib
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fdjax.errors import ConfigError
from fdjax.serve.http.accounts import QUOTAS, Quotas
from fdjax.serve.http.api_key import ApiKey, check_key, digest_of
from fdjax.serve.http.tenants import Tenant

MAX_BYTES = 2**20
# What a request brings is compared with every one of them: 0.1 milliseconds in all.
MAX_KEYS = 1024
_INT32 = 2**31
_LOGGER = logging.getLogger(__name__)


def read_keys(path: pathlib.Path) -> list[ApiKey]:
    """The keys of a file in TOML, read strictly.

    Raises:
        ConfigError: the file cannot be read, everybody may write it, or it is too
            long; it has no key, or more than `MAX_KEYS`; or a field is unknown, or not
            what it must be. No message has a key in it.
    """
    try:
        entries = _File.model_validate(_document(path)).keys
        keys = [entry.api_key(name) for name, entry in entries.items()]
    except ValidationError as error:  # it quotes what it found, and so keys
        raise ConfigError(f"{path}: {_first(error)}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if any(entry.key for entry in entries.values()) and _mode(path) & stat.S_IROTH:
        _LOGGER.warning(
            "%s has keys in it, and everybody on this machine may read it: use mode "
            "600, or write sha256 in place of key",
            path,
        )
    return keys


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


type _Count = Annotated[int, Field(ge=1, lt=_INT32)]
_OneOrSeveral = BeforeValidator(
    lambda given: [given] if isinstance(given, str) else given
)
_Few = Field(max_length=4)


class _Entry(_Strict):
    """One table of the file."""

    key: Annotated[list[str], _OneOrSeveral, _Few] = []
    sha256: Annotated[
        list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]], _OneOrSeveral, _Few
    ] = []
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    max_running_samples: _Count | None = None
    max_queued_samples: _Count | None = None
    priority: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    def api_key(self, name: str) -> ApiKey:
        """The same, without the keys.

        Raises:
            ConfigError: there is none, or see `check_key`.
        """
        for key in self.key:
            check_key(key, f"keys.{name}.key")
        digests = [digest_of(key.encode()) for key in self.key]
        digests += [bytes.fromhex(digest) for digest in self.sha256]
        if not digests:
            raise ConfigError(f"keys.{name} has neither key nor sha256; give one")
        tenant = Tenant(
            name=name,
            may_prioritise=self.priority,
            quotas=Quotas(**{quota: getattr(self, quota) for quota in QUOTAS}),
            cache_salt=self.cache_salt,
        )
        return ApiKey(tenant, tuple(digests))


class _File(_Strict):
    """The whole file; without a key in it, everybody would be served."""

    keys: Annotated[
        dict[Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,64}$")], _Entry],
        Field(min_length=1, max_length=MAX_KEYS),
    ]


def _document(path: pathlib.Path) -> dict[str, Any]:
    mode = _mode(path)
    if not stat.S_ISREG(mode):
        raise ConfigError("it is not a regular file; name one")
    if mode & stat.S_IWOTH:
        raise ConfigError(
            "everybody on this machine may write it, and so add keys (mode "
            f"{stat.S_IMODE(mode):o}); use 600"
        )
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"it has more than {MAX_BYTES} bytes; make it shorter")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise ConfigError("it is nested too deeply to be read") from None


def _mode(path: pathlib.Path) -> int:
    return path.stat().st_mode


def _first(error: ValidationError) -> str:
    """One of the faults; nothing of what was found there."""
    faults = error.errors(include_input=False, include_url=False)
    # A field that is misspelt may be why another one is missing.
    fault = min(faults, key=lambda one: one["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = [*(_File if len(fault["loc"]) == 1 else _Entry).model_fields]
        return f"{place} is not known; known are {', '.join(known)}"
    return f"{place}: {fault['msg']}"
