"""The charts of loads draw what rows hold, on scales that have room for it."""

import re
from typing import Any

import pytest

from benchmarks import load_charts
from benchmarks.tables import LOADS

FIRST, SECOND = [10.0, 100.0, 1000.0], [20.0, 200.0, 900.0]


def curves(times: list[float]) -> dict[str, Any]:
    """Both distributions of a row."""
    return {"at": [50, 90, 99], "ttft_ms": times, "gap_ms": times}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """fdjax's and another engine's, of every load."""
    own: dict[str, Any] = {"engine": "fdjax", "mixed_steps": True}
    other: dict[str, Any] = {"engine": "vllm", "version": "0.26.0"}
    return [
        {"load": load, "requests_per_s": rate, "distributions_ms": curves(times)} | one
        for load in LOADS
        for one, times, rate in ((own, FIRST, 11.25), (other, SECOND, 10.5))
    ]


def test_a_distribution_has_the_points_of_both_engines(rows: list[dict[str, Any]]):
    drawn = load_charts.distribution(rows, "gap_ms")
    lines = re.findall(r'<polyline points="([^"]+)" class="line (\w)"', drawn)
    assert [kind for _, kind in lines] == ["b", "a"] * len(LOADS)
    points = [tuple(map(float, one.split(","))) for one in lines[1][0].split()]
    (left, *_), wide = load_charts._PLOT, load_charts._PLOT[2]
    assert [x for x, _ in points] == [left, left + wide / 2, left + wide]
    heights = [y for _, y in points]
    # p90 is 0.7 nines above p50, and p99 one more.
    assert heights == sorted(heights, reverse=True)
    share = (heights[0] - heights[1]) / (heights[0] - heights[2])
    assert share == pytest.approx(0.7 / 1.7, abs=0.01)


def test_rates_stand_beside_what_was_asked(rows: list[dict[str, Any]]):
    drawn = load_charts.throughput(rows)
    assert drawn.count(">11.2<") == drawn.count(">10.5<") == len(LOADS)
    asked = re.findall(r'<line x1="([\d.]+)"', drawn)
    assert len(asked) == 4, "12 and 20 a second, of both forms"
    twelve, twenty = float(asked[0]), float(asked[1])
    widths = re.findall(r'<rect x="120.0" [^>]*width="([\d.]+)"', drawn)
    assert (twenty - 120) / 20 == pytest.approx((twelve - 120) / 12, rel=0.01)
    assert (twelve - 120) / 12 == pytest.approx(float(widths[0]) / 11.25, rel=0.01)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([5.1, 65.7], [5, 10, 20, 50, 100]),
        ([7049.4, 19279.2], [5000, 10_000, 20_000]),
        ([3.0, 4.0], [2, 5]),
        ([10.0, 10.0], [10, 20]),
    ],
)
def test_ticks_enclose_all(values: list[float], ticks: list[float]):
    assert load_charts.ticks_around(values) == pytest.approx(ticks)
