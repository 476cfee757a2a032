"""Prometheus metrics under the names of vLLM, with a prefix of their own."""

import re
import time
from collections.abc import Sequence
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.accounts import Account
from fdjax.serve.http.crowd import Reason
from fdjax.serve.http.engine_metrics import EngineCollector
from fdjax.serve.http.key_metrics import KeyCollector
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.outputs import FAILURES, Chunk
from fdjax.serve.stream import Stream

PREFIX = "fdjax"
"""Of the names of metrics that are not of the process."""

_OWN = re.compile(rb"^((?:# (?:HELP|TYPE) )?)%s:" % PREFIX.encode(), re.MULTILINE)
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
    300,
)  # fmt: skip
_TOKENS = tuple(2**power for power in range(18))
_REASONS = ("stop", "length", "abort", "error")
_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one server, in a registry of its own.

    Args:
        llm: it and its engine are looked at when somebody asks.
        model: the label `model_name`.
        keyring: whose tenants have metrics of their own.
        prefix: of names, in place of `PREFIX`.
    """

    def __init__(
        self, llm: AsyncLLM, model: str, keyring: Keyring, *, prefix: str = PREFIX
    ) -> None:
        self._registry = CollectorRegistry()
        self._prefix = prefix
        self._model = model
        self._registry.register(
            EngineCollector(llm.statistics, lambda: llm.num_made, model)
        )
        self._registry.register(KeyCollector(keyring, llm.statistics, model))
        ProcessCollector(registry=self._registry)
        unfinished = Gauge(
            "fdjax:num_requests_unfinished",
            "Requests that wait or run.",
            ["model_name"],
            registry=self._registry,
        )
        unfinished.labels(model).set_function(lambda: llm.num_unfinished)
        step_age = Gauge(
            "fdjax:engine_step_age_seconds",
            "Of the step under way, unless it compiles.",
            ["model_name"],
            registry=self._registry,
        )
        step_age.labels(model).set_function(lambda: llm.step_age_s)
        self.connections = Gauge(
            "fdjax:num_connections",
            "Open connections.",
            ["model_name"],
            registry=self._registry,
        ).labels(model)
        self._dropped = Counter(
            "fdjax:connections_dropped",
            "Connections closed, or refused a request, by what was too much.",
            ["model_name", "reason"],
            registry=self._registry,
        )
        for reason in get_args(Reason.__value__):
            self._dropped.labels(model, reason)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.rejections = self._counter(
            "admission_rejections", "Requests refused because too many waited."
        )
        self.success = Counter(
            "fdjax:request_success",
            "Requests that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        for reason in _REASONS:
            self.success.labels(model, reason)
        self._failures = Counter(
            "fdjax:request_failures",
            "Requests that the engine gave up, by reason.",
            ["model_name", "reason"],
            registry=self._registry,
        )
        for failure in FAILURES.values():
            self._failures.labels(model, failure.code)
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
        self.queue = self._seconds(
            "request_queue_time", "Until the engine let the request in."
        )
        self.prefill = self._seconds(
            "request_prefill_time", "From there until the first tokens were there."
        )
        self.decode = self._seconds(
            "request_decode_time", "From the first tokens to the last."
        )
        self.inference = self._seconds(
            "request_inference_time", "From when it was let in until the last."
        )
        self.prompt_lengths = self._histogram(
            "request_prompt_tokens", "Tokens of the prompt, by request.", _TOKENS
        )
        self.output_lengths = self._histogram(
            "request_generation_tokens", "Tokens made, by request.", _TOKENS
        )
        self.longest_outputs = self._histogram(
            "request_max_num_generation_tokens",
            "Tokens of the longest of a prompt's samples.",
            _TOKENS,
        )
        self.params_n = self._histogram(
            "request_params_n", "Samples asked for.", _SAMPLES
        )
        self.params_max_tokens = self._histogram(
            "request_params_max_tokens", "Longest output asked for.", _TOKENS
        )

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        text = generate_latest(self._registry)
        if self._prefix == PREFIX:
            return text
        return _OWN.sub(rb"\1%s:" % self._prefix.encode(), text)

    def dropped(self, reason: Reason) -> None:
        """Counts a connection that the server closed."""
        self._dropped.labels(self._model, reason).inc()

    def ended(self, reason: str) -> None:
        """Counts a request's end."""
        self.success.labels(self._model, reason).inc()

    def failed(self, code: str) -> None:
        """Counts a request that the engine gave up, by the code of its failure."""
        self._failures.labels(self._model, code).inc()

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

    Tokens are charged when they are read, and at the end those that nobody has read. A
    beam search is charged for the tokens of all beams instead, when they have come, and
    for none of its outputs, which are made of them.

    Args:
        metrics: what is counted.
        account: of who asks.
        stream: the request's.
        started: when it came, by `time.monotonic`.

    Attributes:
        reason: for its end; "" before.
        queue_s: until the engine let it in; `None` before its first tokens.
        first_token_s: until these were there.
        num_tokens: those that have come.
    """

    def __init__(
        self, metrics: Metrics, account: Account, stream: Stream, started: float
    ) -> None:
        self.reason = ""
        self.queue_s: float | None = None
        self.first_token_s: float | None = None
        self._metrics = metrics
        self._account = account
        self._stream = stream
        self._started = self._last = started
        self.num_tokens = 0
        prompt = len(stream.request.prompt)
        metrics.prompt_tokens.inc(prompt)
        metrics.prompt_lengths.observe(prompt)
        metrics.params_max_tokens.observe(stream.request.max_tokens)
        self._is_search = stream.request.beams is not None
        if self._is_search:
            stream.tell_tried(account.made)

    def chunk(self, chunk: Chunk) -> None:
        """Counts what has come."""
        metrics, now, count = self._metrics, time.monotonic(), len(chunk.token_ids)
        self._charge(count)
        self.num_tokens += count
        if self.first_token_s is not None:
            for _ in range(count):
                metrics.inter_token.observe((now - self._last) / count)
        elif count:  # it may end before it has any
            self._begin(now)
        self._last = now
        if chunk.finish_reason is not None:
            self.end(chunk.finish_reason)

    def end(self, reason: str) -> None:
        """Counts the end, the first time it is told; what nobody read was made, too."""
        if self.reason:
            return
        self.reason = reason
        self._charge(self._stream.num_unread)
        metrics, whole_s = self._metrics, self._last - self._started
        metrics.ended(reason)
        metrics.output_lengths.observe(self.num_tokens)
        if self.first_token_s is not None and self.queue_s is not None:
            decode_s = whole_s - self.first_token_s
            metrics.whole.observe(whole_s)
            metrics.decode.observe(decode_s)
            metrics.inference.observe(whole_s - self.queue_s)
            if self.num_tokens > 1:
                metrics.per_token.observe(decode_s / (self.num_tokens - 1))

    def _charge(self, num_tokens: int) -> None:
        if not self._is_search:
            self._account.made(num_tokens)

    def _begin(self, now: float) -> None:
        admitted = self._stream.admitted_s
        assert admitted is not None, "it has made tokens"
        self.queue_s = max(admitted - self._started, 0.0)
        self.first_token_s = now - self._started
        self._metrics.first_token.observe(self.first_token_s)
        self._metrics.queue.observe(self.queue_s)
        self._metrics.prefill.observe(self.first_token_s - self.queue_s)
