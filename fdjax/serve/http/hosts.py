"""The names that a server answers to: others reach it by a trick."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fdjax.serve.http.errors import ApiError

ANY = "*"
# What a server is called by those that share its machine.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_MAX_NAME = 100


class Hosts:
    """Lets requests through whose `Host` is one of the server's names.

    A site can let its own name point to the address of a machine that its visitor
    reaches (DNS rebinding): to the browser the server there is then part of the site.
    Browsers tell by which name they ask; what tells none is no browser.

    Args:
        app: what is protected.
        allowed: names without ports; `*.example.com` for all below one, `*` for any.
    """

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset(_plain(name) for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and ANY not in self._names:
            for host in Headers(scope=scope).getlist("host"):
                if not self._knows(_plain(host)):
                    await _refusal(host).send(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _knows(self, name: str) -> bool:
        parents = name.split(".")
        above = ("*." + ".".join(parents[i:]) for i in range(1, len(parents)))
        return name in self._names or not self._names.isdisjoint(above)


def names_of(host: str, *, private: bool) -> tuple[str, ...]:
    """The names that a server answers to where nobody has said.

    Args:
        host: where it listens.
        private: only its own machine reaches it, without a key: a site that its user
            visits must not.
    """
    return (*LOOPBACK, host) if private else (ANY,)


def _plain(host: str) -> str:
    """A name as it is compared: without port, brackets and a last dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") > 1:  # an address of IPv6, as an option may have it
        return host.lower()
    return host.partition(":")[0].removesuffix(".").lower()


def _refusal(host: str) -> ApiError:
    return ApiError(
        f"this server does not answer to {host[:_MAX_NAME]!r}; whoever runs it can "
        "allow the name with --allowed-hosts",
        status=421,
        code="unknown_host",
    )
