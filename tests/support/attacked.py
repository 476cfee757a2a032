"""`fdjax serve` of the shipped model, for tests that attack it."""

import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.support.server_process import server

# Programs are compiled as they are needed, which takes less than all of them.
QUICK = ("--no-warm-up", "--max-num-seqs", "8")
# Of the descriptors that a process may have.
FEW_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
_WAIT_S = 300.0


@dataclass(frozen=True)
class Attacked:
    """A server in a process of its own.

    Attributes:
        process: of it.
        url: where it listens.
        log: its lines.
    """

    process: subprocess.Popen[str]
    url: str
    log: list[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, body: Any) -> httpx2.Response:
        """The answer to a request over a connection of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        with httpx2.Client(base_url=self.url, timeout=_WAIT_S) as client:
            return client.post(path, content=data, headers=headers)

    def small(self) -> httpx2.Response:
        """The answer to what anybody may ask for."""
        return self.post("/v1/completions", {"prompt": "Once", "max_tokens": 16})

    @contextlib.contextmanager
    def begun(self) -> Generator[httpx2.Response]:
        """The stream of what anybody may ask for, which the server has taken."""
        body = {"prompt": "Once", "max_tokens": 16, "stream": True}
        with (
            httpx2.Client(base_url=self.url, timeout=_WAIT_S) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            assert response.status_code == 200
            yield response

    def connection(self) -> socket.socket:
        """A client that takes little at once."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(_WAIT_S)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def asking(self, path: str, body: Any) -> socket.socket:
        """One that has asked for something, and need not read it."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        connection = self.connection()
        connection.sendall(head.encode() + data)
        return connection

    def healthy(self) -> bool:
        """Whether `/health` is answered with 200, to a client that just comes."""
        return httpx2.get(f"{self.url}/health", timeout=_WAIT_S).status_code == 200

    def metric(self, name: str) -> float:
        """One number of `/metrics`."""
        text = httpx2.get(f"{self.url}/metrics", timeout=_WAIT_S).text
        found = re.search(rf"^fdjax:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@contextlib.contextmanager
def attacked_server(*options: str, **others: Any) -> Generator[Attacked]:
    """A server, whose log is kept.

    Args:
        options: of `fdjax serve`.
        others: see `server`.

    Raises:
        SystemExit: see `server`; an option that it does not know is one reason.
    """
    log: list[str] = []
    with server(*options, log=log, **others) as (process, url):
        yield Attacked(process, url, log)
