"""API keys: required on every path but those that say nothing of anybody."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from fdjax.errors import ConfigError
from fdjax.serve.http.errors import ApiError

WATCHED_PATHS = frozenset({"/health", "/metrics"})
# A browser that opens the page can send a password, and no other header. It would then
# send it to every path unasked, on behalf of any site: so it counts for the page alone.
PAGE = "/"
_HOW = "send 'Authorization: Bearer KEY'"
_HOW_TO_PAGE = "type it as the password, with any name"


def check_keys(keys: Sequence[str]) -> None:
    """Checks keys before anything is loaded.

    Raises:
        ConfigError: a key is empty or blank: whoever sends none would bring it.
    """
    if any(not key.strip() for key in keys):
        raise ConfigError(
            "an API key is empty: everybody would be served; name one, or leave it out"
        )


class ApiKeys:
    """Lets requests through that bring one of the keys.

    A request for the page finds the key that it brought in its state, as `api_key`.

    Args:
        app: what is protected.
        keys: without any, everything is let through.

    Raises:
        ConfigError: see `check_keys`.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        check_keys(keys)
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        closed = scope["type"] == "http" and scope["path"] not in WATCHED_PATHS
        if closed and self._digests:
            on_page = scope["path"] == PAGE
            key = _bearer(scope) or (_password(scope) if on_page else b"")
            if not self._knows(key):
                await _refusal(on_page).send(scope, receive, send)
                return
            if on_page:
                scope.setdefault("state", {})["api_key"] = key.decode("latin-1")
        await self._app(scope, receive, send)

    def _knows(self, key: bytes) -> bool:
        digest = _digest(key)
        # All are compared, so that the time tells nothing of which one it is.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _refusal(on_page: bool) -> ApiError:
    challenge = 'Basic realm="fdjax: the password is an API key"'
    return ApiError(
        f"the API key is missing or wrong; {_HOW_TO_PAGE if on_page else _HOW}",
        status=401,
        code="invalid_api_key",
        headers={"WWW-Authenticate": challenge if on_page else "Bearer"},
    )


def _bearer(scope: Scope) -> bytes:
    scheme, credentials = _authorization(scope)
    return credentials if scheme == b"bearer" else b""


def _password(scope: Scope) -> bytes:
    scheme, credentials = _authorization(scope)
    if scheme != b"basic":
        return b""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _authorization(scope: Scope) -> tuple[bytes, bytes]:
    """The scheme, in small letters, and what follows it."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            return scheme.lower(), credentials.strip()
    return b"", b""


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that the comparison does not tell theirs."""
    return hashlib.sha256(key).digest()
