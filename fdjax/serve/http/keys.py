"""API keys: required on every path but those that say nothing of anybody."""

import base64
import binascii

from starlette.types import ASGIApp, Receive, Scope, Send

from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.tenants import attach

WATCHED_PATHS = frozenset(
    {"/health", "/health/live", "/health/ready", "/metrics", "/ping"}
)
# A browser that opens a page can send a password, and no other header. It would then
# send it to every path unasked, on behalf of any site: so it counts for pages alone.
PAGES = ("/", "/docs")
# Paths below it end requests, which costs nothing and must always be possible.
_ENDING = "/v1/requests/"
_HOW = "send 'Authorization: Bearer KEY'"
_HOW_TO_PAGE = "type it as the password, with any name"


class ApiKeys:
    """Lets requests through that bring one of the keys.

    Whoever asks is found in the request's state (`tenants.tenant_of`). A request for
    the page finds the key that it brought there too, as `api_key`.

    Args:
        app: what is protected.
        keyring: of the keys.
    """

    def __init__(self, app: ASGIApp, *, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if scope["path"] not in WATCHED_PATHS:
                self._let_in(scope)
        except ApiError as error:
            await error.send(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _let_in(self, scope: Scope) -> None:
        on_page = scope["path"] in PAGES
        key = _bearer(scope) or (_password(scope) if on_page else b"")
        tenant = self._keyring.owner(key)
        if tenant is None:
            raise _refusal(on_page)
        attach(scope, tenant)
        if on_page and self._keyring.asks:
            scope["state"]["api_key"] = key.decode("latin-1")
        if scope["method"] == "POST" and not scope["path"].startswith(_ENDING):
            tenant.account.request()


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
