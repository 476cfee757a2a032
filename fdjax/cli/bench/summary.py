"""A run against a server in numbers, as `fdjax bench serve` reports it."""

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdjax.cli.bench.distribution import Distribution
from fdjax.cli.bench.goodput import is_good
from fdjax.cli.bench.outcome import MEASURES, Outcome
from fdjax.cli.bench.replay import Replay


@dataclass(frozen=True)
class Failure:
    """Requests that failed in one way.

    Attributes:
        kind: the way.
        count: how many.
        first: what the server or the machine said about the first of them.
    """

    kind: str
    count: int
    first: str


@dataclass(frozen=True)
class Goodput:
    """Requests completed within all limits.

    Attributes:
        limits_ms: the limits, by the name of what they limit.
        requests: how many kept them.
        share: of all requests, failed ones included.
        requests_per_s: of them.
    """

    limits_ms: dict[str, float]
    requests: int
    share: float
    requests_per_s: float


@dataclass(frozen=True)
class Summary:
    """Everything measured.

    Attributes:
        requests: how many were sent.
        completed: how many of them were answered whole.
        short: completed ones with fewer tokens than asked for.
        failures: the others, by kind, most frequent first.
        duration_s: from the first arrival to the end of the last request.
        input_tokens: of completed requests; the server's count where it gives one.
        output_tokens: of completed requests; `None` if the server did not count them
            all.
        requests_per_s: completed ones.
        output_tokens_per_s: `None` if the server did not count them.
        total_tokens_per_s: input and output; as above.
        latency_ms: of completed requests: "ttft", "itl" (every gap between events),
            "tpot" and "e2e"; `None` for what no request has.
        late_ms: how long requests waited in the client before they were sent.
        lag_ms: how far the client itself was behind: see `Replay`.
        goodput: where limits were given.
    """

    requests: int
    completed: int
    short: int
    failures: list[Failure]
    duration_s: float
    input_tokens: int
    output_tokens: int | None
    requests_per_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    latency_ms: dict[str, Distribution | None]
    late_ms: Distribution | None
    lag_ms: Distribution | None
    goodput: Goodput | None


def summarise(replayed: Replay, limits_ms: Mapping[str, float]) -> Summary:
    """Counts and measures a run.

    Args:
        replayed: of at least one request.
        limits_ms: of goodput; may be empty.
    """
    outcomes = replayed.outcomes
    completed = [one for one in outcomes if one.error is None]
    duration_s = max(one.end_s for one in outcomes) - min(o.due_s for o in outcomes)
    input_tokens = sum(_input_tokens(one) for one in completed)
    output_tokens = _output_tokens(completed)
    total = None if output_tokens is None else input_tokens + output_tokens
    return Summary(
        requests=len(outcomes),
        completed=len(completed),
        short=sum(_is_short(one) for one in completed),
        failures=_failures(outcomes),
        duration_s=duration_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests_per_s=len(completed) / duration_s,
        output_tokens_per_s=_rate(output_tokens, duration_s),
        total_tokens_per_s=_rate(total, duration_s),
        latency_ms={name: _latency(name, completed) for name in MEASURES},
        late_ms=_milliseconds([one.late_s for one in outcomes]),
        lag_ms=_milliseconds(replayed.lag_s),
        goodput=_goodput(outcomes, limits_ms, duration_s) if limits_ms else None,
    )


def seconds_of(name: str, outcomes: Sequence[Outcome]) -> list[float]:
    """All values of a measure: of "itl" every gap, of the others one a request."""
    if name == "itl":
        return [gap for one in outcomes for gap in one.gaps_s]
    values = [one.measure(name) for one in outcomes]
    return [value for value in values if value is not None]


def _latency(name: str, completed: Sequence[Outcome]) -> Distribution | None:
    return _milliseconds(seconds_of(name, completed))


def _milliseconds(seconds: Sequence[float]) -> Distribution | None:
    return Distribution.of([one * 1e3 for one in seconds])


def _goodput(
    outcomes: Sequence[Outcome], limits_ms: Mapping[str, float], duration_s: float
) -> Goodput:
    good = sum(is_good(one, limits_ms) for one in outcomes)
    return Goodput(dict(limits_ms), good, good / len(outcomes), good / duration_s)


def _failures(outcomes: Sequence[Outcome]) -> list[Failure]:
    kinds = [one.error for one in outcomes if one.error is not None]
    first = {one.error: one.detail for one in reversed(outcomes)}
    counted = collections.Counter(kinds).most_common()
    return [Failure(kind, count, first[kind]) for kind, count in counted]


def _input_tokens(outcome: Outcome) -> int:
    given = outcome.prompt_tokens
    return outcome.input_tokens if given is None else given


def _output_tokens(completed: Sequence[Outcome]) -> int | None:
    counts = [one.output_tokens for one in completed]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _is_short(outcome: Outcome) -> bool:
    made = outcome.output_tokens
    return made is not None and made < outcome.asked_tokens


def _rate(count: int | None, duration_s: float) -> float | None:
    return None if count is None else count / duration_s
