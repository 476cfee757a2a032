"""Spans of requests, as OpenTelemetry's SDK receives them."""

import gzip
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fdjax.errors import to_install
from fdjax.serve.http import traces
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TOKENIZER, TOKENS, served

pytestmark = pytest.mark.anyio

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def spans_of(
    path: str, body: Any, *, headers: Mapping[str, str] | None = None, **options: Any
) -> tuple[ReadableSpan, ...]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with served(tracer_provider=provider, **options) as server:
        async with server.client as client:
            await client.post(path, json=body, headers=headers)
            await client.get("/health")
    return exporter.get_finished_spans()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_span_says_what_was_served(stream: bool):
    body = CHAT | {"temperature": 0.5, "max_tokens": 3, "n": 2, "stream": stream}
    (span,) = await spans_of(CHATS, body, headers={"x-request-id": "abc"})
    assert span.name == "chat tales"
    assert span.kind is trace.SpanKind.SERVER
    assert span.status.is_ok
    attributes: dict[str, Any] = dict(span.attributes or {})
    latencies = [
        attributes.pop(f"gen_ai.latency.{name}")
        for name in ("time_in_queue", "time_to_first_token", "e2e")
    ]
    assert latencies == sorted(latencies)
    assert attributes.pop("gen_ai.response.id")
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "fdjax",
        "gen_ai.request.model": "tales",
        "gen_ai.request.id": "abc",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": len(TOKENIZER.encode("Once")),
        "gen_ai.usage.output_tokens": 6,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": CHATS,
    }
    assert span.start_time and span.end_time
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(latencies[2])


async def test_a_span_is_part_of_the_caller_s_trace():
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    (span,) = await spans_of(COMPLETIONS, PROMPT, headers=headers)
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.name == "text_completion tales"


@pytest.mark.parametrize("given", ["", "garbage", f"00-{TRACE}-{'0' * 16}-01"])
async def test_a_trace_that_cannot_be_read_is_a_new_one(given: str):
    (span,) = await spans_of(COMPLETIONS, PROMPT, headers={"traceparent": given})
    assert span.parent is None


async def test_refused_requests_have_spans_and_are_no_errors_of_the_server():
    (span,) = await spans_of(COMPLETIONS, {"prompt": "my words", "model": "x"})
    attributes = span.attributes or {}
    assert span.name == "text_completion"
    assert attributes["http.response.status_code"] == 404
    assert attributes["error.type"] == "model_not_found"
    assert span.status.status_code is trace.StatusCode.UNSET


async def test_a_failure_of_the_engine_is_an_error():
    engine = FakeEngine(TOKENS, fails_at=1)
    (span,) = await spans_of(COMPLETIONS, PROMPT, engine=engine)
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "engine_dead"


async def test_without_the_package_there_are_no_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert traces.observer() is None
    assert await spans_of(COMPLETIONS, PROMPT) == ()


class _Collector(BaseHTTPRequestHandler):
    """Keeps what is sent to it."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.received.append((self.path, self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Providers that were made the process's own, which can be done only once."""
    providers: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    for name in traces._ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    return providers


def test_spans_go_where_the_environment_says(
    set_up: list[Any], monkeypatch: pytest.MonkeyPatch
):
    with HTTPServer(("127.0.0.1", 0), _Collector) as collector:
        thread = threading.Thread(target=collector.handle_request)
        thread.start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        traces.start_export()
        (provider,) = set_up
        provider.get_tracer("test").start_span("told").end()
        provider.shutdown()
        thread.join(timeout=60)
    ((path, body),) = _Collector.received
    assert path == "/v1/traces"
    told = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    assert b"told" in told and b"fdjax" in told


def test_without_an_endpoint_nothing_is_sent(set_up: list[Any]):
    traces.start_export()
    assert not set_up


def test_an_endpoint_without_the_package_is_told(
    set_up: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traces.start_export()
    assert not set_up
    assert to_install("traces") in caplog.text
