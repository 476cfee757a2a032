"""Percentiles and spreads, by hand."""

import pytest

from fdjax.cli.bench.distribution import Distribution, Spread


def test_percentiles_are_interpolated():
    measured = Distribution.of([4.0, 1.0, 2.0, 3.0, 0.0])
    assert measured is not None
    assert (measured.count, measured.mean, measured.largest) == (5, 2.0, 4.0)
    percentiles = [measured.p50, measured.p90, measured.p99]
    assert percentiles == pytest.approx([2.0, 3.6, 3.96])


def test_one_value_is_all_percentiles():
    assert Distribution.of([7.0]) == Distribution(1, 7.0, 7.0, 7.0, 7.0, 7.0)


def test_nothing_has_no_distribution():
    assert Distribution.of([]) is None


def test_the_spread_is_relative_to_the_median():
    assert Spread.of([2.0, 5.0, 4.0]) == Spread(4.0, 2.0, 5.0, 0.75, (2.0, 5.0, 4.0))
