"""Connections that keep still, do not read, or say what is no request."""

import contextlib
import json
import socket

import pytest

from tests.support.attacked import Attacked
from tests.support.quiet import quiet
from tests.support.waiting import wait_until

PATH, SMALL = "/v1/completions", {"prompt": "Once", "max_tokens": 5}
GET = b"GET /v1/models HTTP/1.1\r\nHost: "


def said(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**16):
            parts.append(part)
    return b"".join(parts)


def test_silent_connections(attacked: Attacked):
    """There are more of them than file descriptors."""
    with quiet(attacked.port) as beside, contextlib.ExitStack() as stack:
        for i in range(300):
            connection = stack.enter_context(attacked.connection())
            connection.sendall(GET if i % 2 else b"")
        assert attacked.healthy()
        assert attacked.small().status_code == 200
        beside.go_on()


def test_a_stream_that_is_never_read(attacked: Attacked):
    """The server does not keep all of it for as long as the client likes."""
    body = {
        "messages": [{"role": "user", "content": "Once"}],
        "n": 32,
        "max_tokens": 200,
        "logprobs": True,
        "top_logprobs": 20,
        "ignore_eos": True,
        "stream": True,
    }
    with attacked.asking("/v1/chat/completions", body) as connection:
        connection.recv(1)
        assert attacked.healthy()
        wait_until(lambda: not attacked.metric("num_requests_running"), 120)
        rest = said(connection)
    assert len(rest) < 8_000_000, "of 12 million bytes"
    assert b"[DONE]" not in rest
    with quiet(attacked.port) as beside:
        beside.go_on()


@pytest.mark.parametrize(
    ("head", "status"),
    [(b"evil.example", b"421"), (b"127.0.0.1\r\nX: " + b"a" * 100_000, b"431")],
    ids=["another-host", "100-KB"],
)
def test_heads(attacked: Attacked, head: bytes, status: bytes):
    with quiet(attacked.port) as beside, attacked.connection() as connection:
        connection.sendall(GET + head + b"\r\nConnection: close\r\n\r\n")
        answer = said(connection)
        beside.go_on()
    assert answer.split()[1] == status
    assert b'"error"' in answer


def test_a_client_that_has_ended_its_side(attacked: Attacked):
    with quiet(attacked.port) as beside:
        with attacked.asking(PATH, SMALL) as connection:
            connection.shutdown(socket.SHUT_WR)
            answer = said(connection)
        beside.go_on()
    assert b"HTTP/1.1 200" in answer
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["choices"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"prompt": "\xff\xfe"}', "invalid_json", "byte 0xff in position 12"),
        (
            rb'{"prompt": "a", "structured_outputs": {"regex": "[^\\s\\S]"}}',
            None,
            "no text has this form",
        ),
    ],
    ids=["no-utf-8", "no-text"],
)
def test_errors_that_can_be_read(
    attacked: Attacked, body: bytes, code: str | None, words: str
):
    with quiet(attacked.port) as beside:
        answer = attacked.post(PATH, body)
        beside.go_on()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code)
    assert words in error["message"]
