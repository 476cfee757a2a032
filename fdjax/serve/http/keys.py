"""API keys: required on every path but those that say nothing of anybody."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from fdjax.serve.http.errors import ApiError

WATCHED_PATHS = frozenset({"/health", "/metrics"})
# The page is the same for everybody, and asks for a key itself.
OPEN_PATHS = WATCHED_PATHS | {"/"}


class ApiKeys:
    """Lets requests through that bring one of the keys.

    Args:
        app: what is protected.
        keys: without any, everything is let through.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        closed = scope["type"] == "http" and scope["path"] not in OPEN_PATHS
        if closed and self._digests and not self._knows(scope):
            error = ApiError(
                "the API key is missing or wrong; send 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.send(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        digest = _digest(_bearer(scope))
        # All are compared, so that the time tells nothing of which one it is.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that the comparison does not tell theirs."""
    return hashlib.sha256(key).digest()
