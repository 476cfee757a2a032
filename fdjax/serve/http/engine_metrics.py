"""What the engine has counted, as metrics that are read when somebody looks."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fdjax.engine.statistics import EngineStatistics

_LABELS = ("model_name",)


class EngineCollector(Collector):
    """Asks an engine once for each scrape.

    Args:
        look: one look at the engine, which is not waited for.
        num_made: tokens that it has made, whoever reads them.
        model: the label `model_name`.
    """

    def __init__(
        self,
        look: Callable[[], EngineStatistics],
        num_made: Callable[[], int],
        model: str,
    ) -> None:
        self._look = look
        self._num_made = num_made
        self._model = model

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metrics of this moment."""
        now = self._look()
        yield self._gauge("num_requests_running", "Requests that run.", now.num_running)
        yield self._gauge(
            "num_requests_waiting", "Requests that wait for a row.", now.num_waiting
        )
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the pages that running requests hold; 1 is all.",
            now.num_held_pages / now.num_pages,
        )
        yield self._gauge(
            "kv_cache_boundary_perc",
            "Pages up to the highest that running requests hold, as a share of all.",
            now.boundary / now.num_pages,
        )
        yield self._gauge(
            "kv_cache_fragmentation_perc",
            "Share of the pages up to that one which no running request holds.",
            now.fragmentation,
        )
        yield self._gauge(
            "kv_cache_borrowed_perc",
            "Pages at the end that the last step borrows, as a share of all.",
            now.num_borrowed_pages / now.num_pages,
        )
        yield self._config(now)
        yield self._counter(
            "num_preemptions",
            "Requests put back into the queue because pages ran out, or for others.",
            now.num_preemptions,
        )
        yield self._counter(
            "preemptions_for_room",
            "Those of them for want of the pages that steps borrow.",
            now.num_put_back_for_room,
        )
        yield self._counter(
            "pages_moved",
            "Pages moved down for steps to compute where they were.",
            now.num_moved_pages,
        )
        yield self._counter(
            "prefix_cache_queries",
            "Tokens of requests let in, looked up in the prefix cache.",
            now.num_queried_tokens,
        )
        yield self._counter(
            "prefix_cache_hits",
            "Tokens found in the prefix cache, and not computed.",
            now.num_cached_tokens,
        )
        yield self._counter("generation_tokens", "Tokens made.", self._num_made())
        softmax = now.softmax
        yield self._counter(
            "softmax_query_heads",
            "Query heads of tokens that were attended with, in all layers.",
            softmax.query_heads * len(softmax.recomputed),
        )
        yield self._counter(
            "softmax_query_heads_recomputed",
            "Those that left the bounds of the unified maximum.",
            sum(softmax.recomputed),
        )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"fdjax:{name}", text, labels=_LABELS)
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"fdjax:{name}", text, labels=_LABELS)
        family.add_metric([self._model], value)
        return family

    def _config(self, now: EngineStatistics) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "fdjax:cache_config_info",
            "The KV array: pages, and tokens of a page.",
            labels=(*_LABELS, "block_size", "num_gpu_blocks"),
        )
        family.add_metric([self._model, str(now.page_size), str(now.num_pages)], 1)
        return family
