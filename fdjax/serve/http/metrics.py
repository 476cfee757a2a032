"""Prometheus metrics under the names of vLLM, with the prefix `fdjax:`."""

import time
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from fdjax.serve.async_llm import AsyncLLM, Stream
from fdjax.serve.outputs import Chunk

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
    300,
)  # fmt: skip
_TOKENS = tuple(2**power for power in range(18))
_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one server, in a registry of its own.

    Args:
        llm: its unfinished requests are counted when somebody looks.
        model: the label `model_name`.
    """

    def __init__(self, llm: AsyncLLM, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        unfinished = Gauge(
            "fdjax:num_requests_unfinished",
            "Requests that wait or run.",
            ["model_name"],
            registry=self._registry,
        )
        unfinished.labels(model).set_function(lambda: llm.num_unfinished)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens made.")
        self.rejections = self._counter(
            "admission_rejections", "Requests refused because too many waited."
        )
        self.success = Counter(
            "fdjax:request_success",
            "Requests that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self.first_token = self._seconds(
            "time_to_first_token", "Until the first tokens were there."
        )
        self.inter_token = self._seconds(
            "inter_token_latency", "From one token to the next, by token."
        )
        self.per_token = self._seconds(
            "request_time_per_output_token", "The same, averaged over a request."
        )
        self.whole = self._seconds("e2e_request_latency", "Of whole requests.")
        self.prompt_lengths = self._histogram(
            "request_prompt_tokens", "Tokens of the prompt, by request.", _TOKENS
        )
        self.output_lengths = self._histogram(
            "request_generation_tokens", "Tokens made, by request.", _TOKENS
        )
        self.params_n = self._histogram(
            "request_params_n", "Samples asked for.", _SAMPLES
        )
        self.params_max_tokens = self._histogram(
            "request_params_max_tokens", "Longest output asked for.", _TOKENS
        )

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def ended(self, reason: str) -> None:
        """Counts a request's end."""
        self.success.labels(self._model, reason).inc()

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(
            f"fdjax:{name}", text, ["model_name"], registry=self._registry
        )
        return counter.labels(self._model)

    def _seconds(self, name: str, text: str) -> Histogram:
        return self._histogram(f"{name}_seconds", text, _SECONDS)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"fdjax:{name}",
            text,
            ["model_name"],
            registry=self._registry,
            buckets=buckets,
        )
        return histogram.labels(self._model)


class Watch:
    """Follows one request's stream from its start to its end.

    Args:
        metrics: what is counted.
        stream: the request's.
        started: when it came, by `time.monotonic`.
    """

    def __init__(self, metrics: Metrics, stream: Stream, started: float) -> None:
        self._metrics = metrics
        self._started = self._last = started
        self._first: float | None = None
        self._num_tokens = 0
        self._ended = False
        prompt = len(stream.request.prompt)
        metrics.prompt_tokens.inc(prompt)
        metrics.prompt_lengths.observe(prompt)
        metrics.params_max_tokens.observe(stream.request.max_tokens)

    def chunk(self, chunk: Chunk) -> None:
        """Counts what has come."""
        metrics, now, count = self._metrics, time.monotonic(), len(chunk.token_ids)
        metrics.generation_tokens.inc(count)
        self._num_tokens += count
        if self._first is None:
            self._first = now
            metrics.first_token.observe(now - self._started)
        else:
            for _ in range(count):
                metrics.inter_token.observe((now - self._last) / count)
        self._last = now
        if chunk.finish_reason is not None:
            self.end(chunk.finish_reason)

    def end(self, reason: str) -> None:
        """Counts the end, the first time it is told."""
        if self._ended:
            return
        self._ended = True
        self._metrics.ended(reason)
        self._metrics.output_lengths.observe(self._num_tokens)
        if self._first is not None:
            self._metrics.whole.observe(self._last - self._started)
            if self._num_tokens > 1:
                mean = (self._last - self._first) / (self._num_tokens - 1)
                self._metrics.per_token.observe(mean)
