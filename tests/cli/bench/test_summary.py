"""A run in numbers: what failed is counted, and is in no latency."""

import dataclasses

import pytest

from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.replay import Replay
from fdjax.cli.bench.summary import Failure, Summary, seconds_of, summarise


def done(index: int, *, sent_s: float, token_s: list[float], made: int = 3) -> Outcome:
    return Outcome(
        index,
        float(index),
        input_tokens=10,
        asked_tokens=3,
        sent_s=sent_s,
        token_s=token_s,
        end_s=token_s[-1] + 0.5,
        prompt_tokens=11,
        output_tokens=made,
    )


def failed(index: int, error: str, detail: str) -> Outcome:
    lost = done(index, sent_s=float(index), token_s=[index + 9.0, index + 9.5])
    return dataclasses.replace(lost, error=error, detail=detail, output_tokens=None)


OUTCOMES = [
    done(0, sent_s=0.0, token_s=[1.0, 1.5, 2.5]),
    failed(1, "timeout", "first"),
    done(2, sent_s=2.5, token_s=[4.0, 7.5], made=2),
    failed(3, "HTTP 503", "full"),
    failed(4, "timeout", "second"),
]


def replayed(outcomes: list[Outcome]) -> Replay:
    return Replay(outcomes, [0.002, 0.004])


def p50(summary: Summary, name: str) -> float | None:
    measured = summary.latency_ms[name]
    return None if measured is None else measured.p50


def test_counts_and_rates():
    summary = summarise(replayed(OUTCOMES), {})
    assert (summary.requests, summary.completed, summary.short) == (5, 2, 1)
    assert summary.duration_s == 14.0
    assert (summary.input_tokens, summary.output_tokens) == (22, 5)
    assert summary.requests_per_s == pytest.approx(2 / 14)
    assert summary.output_tokens_per_s == pytest.approx(5 / 14)
    assert summary.total_tokens_per_s == pytest.approx(27 / 14)
    assert summary.goodput is None


def test_failures_are_grouped_and_the_first_is_quoted():
    assert summarise(replayed(OUTCOMES), {}).failures == [
        Failure("timeout", 2, "first"),
        Failure("HTTP 503", 1, "full"),
    ]


def test_latencies_are_those_of_completed_requests():
    summary = summarise(replayed(OUTCOMES), {})
    counts = {name: one and one.count for name, one in summary.latency_ms.items()}
    assert counts == {"ttft": 2, "itl": 3, "tpot": 2, "e2e": 2}
    assert p50(summary, "ttft") == pytest.approx(1250)
    assert p50(summary, "itl") == pytest.approx(1000)
    assert p50(summary, "tpot") == pytest.approx((750 + 3500) / 2)
    assert p50(summary, "e2e") == pytest.approx((3000 + 5500) / 2)
    assert seconds_of("itl", OUTCOMES[:3:2]) == [0.5, 1.0, 3.5]


def test_lateness_is_that_of_all_requests():
    summary = summarise(replayed(OUTCOMES), {})
    assert summary.late_ms is not None
    assert (summary.late_ms.count, summary.late_ms.largest) == (5, 500.0)
    assert summary.lag_ms is not None
    assert summary.lag_ms.mean == pytest.approx(3)


def test_goodput_is_a_share_of_all_requests():
    limits = {"ttft": 1200.0}
    goodput = summarise(replayed(OUTCOMES), limits).goodput
    assert goodput is not None
    assert (goodput.limits_ms, goodput.requests) == (limits, 1)
    assert (goodput.share, goodput.requests_per_s) == pytest.approx((0.2, 1 / 14))


def test_tokens_that_are_not_counted_have_no_rate():
    uncounted = dataclasses.replace(OUTCOMES[0], output_tokens=None, prompt_tokens=None)
    summary = summarise(replayed([uncounted, *OUTCOMES[1:]]), {})
    assert summary.input_tokens == 21
    assert summary.output_tokens is None
    assert summary.output_tokens_per_s is None
    assert summary.total_tokens_per_s is None
    assert p50(summary, "ttft") == pytest.approx(1250)


def test_a_run_in_which_all_failed():
    summary = summarise(replayed(OUTCOMES[1:2]), {"ttft": 9e9})
    assert (summary.completed, summary.requests_per_s) == (0, 0.0)
    assert set(summary.latency_ms.values()) == {None}
    assert summary.goodput is not None
    assert summary.goodput.requests == 0
