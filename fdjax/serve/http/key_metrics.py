"""What each tenant has used and may use, as metrics read when somebody looks."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fdjax.engine.statistics import EngineStatistics
from fdjax.serve.http.accounts import QUOTAS
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.tenants import Tenant

type _Family = CounterMetricFamily | GaugeMetricFamily

_BY_KEY = ("model_name", "key")
_BY_QUOTA = (*_BY_KEY, "quota")


class KeyCollector(Collector):
    """Looks at all tenants of a keyring once for each scrape.

    They are told by name, so there are as many series as the keyring has names.

    Args:
        keyring: looked at.
        look: one look at the engine, which is not waited for.
        model: the label `model_name`.
    """

    def __init__(
        self, keyring: Keyring, look: Callable[[], EngineStatistics], model: str
    ) -> None:
        self._keyring = keyring
        self._look = look
        self._model = model

    def collect(self) -> Iterator[_Family]:
        """The metrics of this moment; none of them where no key is wanted."""
        tenants = [*self._keyring.tenants.values()]
        yield from self._used(tenants)
        yield from self._under_way(tenants)
        yield from self._quotas(tenants)
        if self._keyring.file is not None:
            text = "1 if the file of keys could be read the last time, else 0."
            family = _gauge("key_file_last_read_successful", text, _BY_KEY[:1])
            yield self._filled(family, [((), self._keyring.is_read)])

    def _used(self, tenants: Sequence[Tenant]) -> Iterator[_Family]:
        for name, text, attribute in (
            ("key_requests", "Requests, by key.", "num_requests"),
            ("key_prompt_tokens", "Tokens of prompts, by key.", "prompt_tokens"),
            ("key_generation_tokens", "Tokens made, by key.", "output_tokens"),
        ):
            counts = [((t.name,), getattr(t.account, attribute)) for t in tenants]
            yield self._filled(_counter(name, text, _BY_KEY), counts)

    def _under_way(self, tenants: Sequence[Tenant]) -> Iterator[_Family]:
        now = self._look().tenants
        running = _gauge("key_requests_running", "Requests that run, by key.", _BY_KEY)
        waiting = _gauge(
            "key_requests_waiting", "Requests that wait for a row, by key.", _BY_KEY
        )
        for place, family in enumerate((running, waiting)):
            counts = [((t.name,), now.get(t.name, (0, 0))[place]) for t in tenants]
            yield self._filled(family, counts)

    def _quotas(self, tenants: Sequence[Tenant]) -> Iterator[_Family]:
        limits = [
            ((tenant.name, quota), limit)
            for tenant in tenants
            for quota in QUOTAS
            if (limit := getattr(tenant.quotas, quota)) is not None
        ]
        text = "What the quotas of the file allow."
        yield self._filled(_gauge("key_quota", text, _BY_QUOTA), limits)
        text = "Requests refused because a quota was used up."
        refusals = [
            ((tenant.name, quota), tenant.account.num_refused[quota])
            for tenant in tenants
            for quota in QUOTAS
            if getattr(tenant.quotas, quota) is not None
        ]
        yield self._filled(_counter("key_refusals", text, _BY_QUOTA), refusals)

    def _filled[F: _Family](
        self, family: F, values: Iterable[tuple[tuple[str, ...], float]]
    ) -> F:
        for labels, value in values:
            family.add_metric([self._model, *labels], value)
        return family


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"fdjax:{name}", text, labels=labels)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fdjax:{name}", text, labels=labels)
