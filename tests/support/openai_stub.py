"""A server with the streamed completions of OpenAI, which fails as it is told.

Standard library only, one thread a connection, on a free port of the loopback.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

type Ending = Literal["done", "cut", "no done", "error", "error, cut", "malformed"]

MODEL = "stub"
OK = 200


@dataclass(frozen=True)
class Answer:
    """How one request is answered.

    Attributes:
        status: other than 200 comes with an error object and no stream.
        tokens: how many are made; as asked for by default.
        joined: how many of them are in one event.
        first_s: seconds before the first token.
        gap_s: seconds between tokens.
        before: waits until the n-th event may be sent, from 0; that is when the
            seconds before it begin.
        usage: tokens are counted in an event of their own.
        closing: an event without text says why it ended.
        ending: how the stream ends after its tokens.
        kind: content type of the answer.
    """

    status: int = OK
    tokens: int | None = None
    joined: int = 1
    first_s: float = 0.0
    gap_s: float = 0.0
    before: Callable[[int], None] = lambda _: None
    usage: bool = True
    closing: bool = False
    ending: Ending = "done"
    kind: str = "text/event-stream"


@dataclass
class Stub:
    """The server's side of a test.

    Attributes:
        answer: how the n-th request is answered, from 0.
        url: where the server is.
        requests: bodies, in the order of their arrival.
        keys: their `Authorization` headers.
        ports: of the clients' ends of their connections.
        most: requests under way together.
    """

    answer: Callable[[int], Answer]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str | None] = field(default_factory=list[str | None])
    ports: list[int] = field(default_factory=list[int])
    most: int = 0
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arrived(self, body: dict[str, Any], key: str | None, port: int) -> Answer:
        """Notes a request; says how to answer it."""
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            self.ports.append(port)
            self._running += 1
            self.most = max(self.most, self._running)
            return self.answer(len(self.requests) - 1)

    def left(self) -> None:
        """Notes the end of a request."""
        with self._lock:
            self._running -= 1


@contextlib.contextmanager
def running(answer: Callable[[int], Answer]) -> Generator[Stub]:
    """A server that answers so, until the end of the context."""
    stub = Stub(answer)

    class Handler(_Handler):
        state = stub

    with _Server(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Stub

    def do_POST(self) -> None:
        if self.path != "/v1/completions":
            self.send_error(404)
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key, port = self.headers["Authorization"], self.client_address[1]
        answer = self.state.arrived(body, key, port)
        try:
            self._reply(answer, body)
        finally:
            self.state.left()

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""

    def _reply(self, answer: Answer, body: dict[str, Any]) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.status != OK:
            message = f"refused\nwith \x1b[31m{answer.status}"
            self._write(json.dumps({"error": {"message": message}}))
        else:
            for place, (delay_s, event) in enumerate(_events(answer, body)):
                answer.before(place)
                time.sleep(delay_s)
                self._write(f"data: {event}\n\n")
        if answer.ending.endswith("cut"):
            self.close_connection = True
        else:
            self._write("")

    def _write(self, text: str) -> None:
        """One chunk; an empty one ends the answer."""
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _events(answer: Answer, body: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """What is sent, each after a pause in seconds."""
    count = body["max_tokens"] if answer.tokens is None else answer.tokens
    for i in range(0, count, answer.joined):
        after = min(i + answer.joined, count)
        reason = "length" if after == count and not answer.closing else None
        text = "".join(f" t{token}" for token in range(i, after))
        choice = {"index": 0, "text": text, "finish_reason": reason}
        pause_s = answer.gap_s if i else answer.first_s
        yield pause_s, json.dumps({"choices": [choice], "usage": None})
    if answer.closing:
        choice = {"index": 0, "text": "", "finish_reason": "stop"}
        yield 0.0, json.dumps({"choices": [choice]})
    if answer.ending.startswith("error"):
        yield 0.0, json.dumps({"error": {"message": "the engine is dead"}})
    if answer.ending == "malformed":
        yield 0.0, '{"choices": [7]}'
    if answer.usage:
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        yield 0.0, json.dumps({"choices": [], "usage": usage})
    if answer.ending == "done":
        yield 0.0, "[DONE]"
