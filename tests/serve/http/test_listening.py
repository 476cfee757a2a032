"""Ports that are somebody's before anything is loaded, and descriptors that suffice."""

import resource
import socket
from collections.abc import Iterator

import pytest

from fdjax.errors import ConfigError
from fdjax.serve.http.listening import bound, connections_that_fit, only_here, url


@pytest.fixture
def descriptors() -> Iterator[None]:
    """The process's limit is put back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.name.invalid", "a" * 70])
def test_an_address_that_is_not_this_machines(host: str):
    with pytest.raises(ConfigError, match=f"cannot listen at {host}"), bound(host, 0):
        pass


def test_who_can_reach_it():
    with bound("127.0.0.1", 0) as sockets:
        assert only_here(sockets)
        port = sockets[0].getsockname()[1]
        assert url(sockets[0]) == f"http://127.0.0.1:{port}"
    with bound("0.0.0.0", 0) as sockets:
        assert not only_here(sockets)


def test_a_name_with_several_addresses_has_one_port(monkeypatch: pytest.MonkeyPatch):
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0))
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with bound("localhost", 0) as sockets:
        names = [one.getsockname() for one in sockets]
    assert [host for host, _ in names] == ["127.0.0.1", "127.0.0.2"]
    assert len({port for _, port in names}) == 1


@pytest.mark.usefixtures("descriptors")
def test_connections_have_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    fitting = connections_that_fit(512)
    assert fitting == 512
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512


def test_where_there_are_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    fitting = connections_that_fit(None)
    assert 1 <= fitting < 256 - 128
    assert connections_that_fit(fitting) == fitting
    with pytest.raises(ConfigError, match="300 connections, and may have 256; raise"):
        connections_that_fit(300)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(ConfigError, match="may have 64"):
        connections_that_fit(None)
