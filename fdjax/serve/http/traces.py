"""OpenTelemetry: a span for each request to the model, where its packages are."""

import logging
import os
from typing import TYPE_CHECKING, Any

from fdjax.errors import to_install
from fdjax.serve.http.records import Observer, Record

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_LOGGER = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "chat",
}


def observer(provider: "TracerProvider | None" = None) -> Observer | None:
    """Makes spans of records; `None` where the package is not installed.

    Args:
        provider: of the tracer; the process's own by default.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext
    except ImportError:
        return None
    tracer = trace.get_tracer("fdjax", tracer_provider=provider)
    propagator = tracecontext.TraceContextTextMapPropagator()

    def observe(record: Record) -> None:
        operation = _OPERATIONS.get(record.path)
        if operation is None:
            return
        span = tracer.start_span(
            f"{operation} {record.model}" if record.model else operation,
            context=propagator.extract(record.trace_headers),
            kind=trace.SpanKind.SERVER,
            start_time=record.started_ns,
            attributes=_attributes(record, operation),
        )
        if record.status is None or record.status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end(record.started_ns + round(record.duration_s * 1e9))

    return observe


def start_export() -> None:
    """Sends spans to where OpenTelemetry's variables of the environment say.

    Nothing is sent where they say nothing, or where whoever started the process has
    seen to it.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        _LOGGER.warning(
            "%s is set, but there are no traces without %s; %s",
            next(name for name in _ENDPOINTS if os.environ.get(name)),
            error.name,
            to_install("traces"),
        )
        return
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    named = {"service.name": "fdjax", **OTELResourceDetector().detect().attributes}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _attributes(record: Record, operation: str) -> dict[str, Any]:
    """By the conventions of OpenTelemetry, and vLLM's names for times."""
    known: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "fdjax",
        "gen_ai.request.model": record.model,
        "gen_ai.request.id": record.request_id,
        "http.request.method": record.method,
        "http.response.status_code": record.status,
        "url.path": record.path,
        "error.type": record.error,
    }
    if record.work is not None:
        work, params = record.work, record.work.params
        known |= {
            "gen_ai.request.choice.count": work.n,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
            "gen_ai.response.id": work.response_id,
            "gen_ai.response.finish_reasons": work.finish_reasons,
            "gen_ai.usage.input_tokens": work.prompt_tokens,
            "gen_ai.usage.output_tokens": work.output_tokens,
            "gen_ai.latency.time_in_queue": work.queue_s,
            "gen_ai.latency.time_to_first_token": work.first_token_s,
            "gen_ai.latency.e2e": record.duration_s,
        }
    return {name: value for name, value in known.items() if value is not None}
