"""Where a server listens, and how many descriptors that takes."""

import contextlib
import ipaddress
import pathlib
import resource
import socket
from collections.abc import Generator, Sequence

from fdjax.errors import ConfigError
from fdjax.serve.http.crowd import RESERVE

# Connections that a loop takes at once. It learns of its limits a few rounds later, and
# has to have descriptors until then.
ACCEPTED_AT_ONCE = 8
# Beside connections: what the device, grammars and files need, and the rounds above.
_OTHER_DESCRIPTORS = 128
_MOST_BY_DEFAULT = 1024


@contextlib.contextmanager
def bound(host: str, port: int) -> Generator[list[socket.socket]]:
    """Sockets that nobody else can have, and that do not listen yet.

    Args:
        host: a name or an address, of which each gets a socket; "" for all there are.
        port: 0 takes a free one.

    Raises:
        ConfigError: the port is in use, or the address is not one of this machine's.
    """
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(host, port):
                one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:  # IPv4 has a socket of its own
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken = sockets[0].getsockname()[1] if sockets else port
                one.bind((address, taken))
                sockets.append(one)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot listen at {host or 'all addresses'}, port {port}: {why}; name "
                "another --host or --port"
            ) from error
        yield sockets


def only_here(sockets: Sequence[socket.socket]) -> bool:
    """Nobody but this machine can reach any of them."""
    hosts = [one.getsockname()[0] for one in sockets]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def url(listener: socket.socket) -> str:
    """How to reach one of them."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connections_that_fit(wanted: int | None) -> int:
    """How many connections there may be, for which there are descriptors.

    Raises the process's limit of descriptors as far as it may and has to.

    Args:
        wanted: `None` for 1024, or as many as there are descriptors for.

    Raises:
        ConfigError: there are too few.
    """
    open_now = len(list(pathlib.Path("/dev/fd").iterdir()))
    others = open_now + RESERVE + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = others + (wanted or _MOST_BY_DEFAULT)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    fitting, least = most - others, wanted or 1
    if fitting < least:
        raise ConfigError(
            f"the server needs {others + least} file descriptors for {least} "
            f"connections, and may have {hard}; raise the limit (ulimit -n), or lower "
            "--max-connections"
        )
    return fitting


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((family, str(place[0])) for family, *_, place in found))
