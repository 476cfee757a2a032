"""Ranges of known distributions, and shares outside of them."""

import numpy as np
import pytest

from fdjax.generate.score_histograms import BINS_PER_UNIT, NUM_BINS
from fdjax.models.calibration import Range
from fdjax.serve.score_ranges import bin_edges, covering_range, share_outside

BIN = 1 / BINS_PER_UNIT


def histogram(scores: np.ndarray) -> np.ndarray:
    """As a layer of two heads would have counted them."""
    edges = bin_edges()
    inside = np.clip(scores, edges[0], np.nextafter(edges[-1], 0))
    halves = np.array_split(inside, 2)
    return np.stack([np.histogram(half, edges)[0] for half in halves])


@pytest.mark.parametrize("coverage", [0.9, 0.99, 0.9999])
def test_the_range_of_a_uniform_distribution(coverage: float):
    counts = histogram(np.linspace(-8, 24, 1_000_001))
    found = covering_range(counts, coverage=coverage)
    assert found.low == pytest.approx(8 - 16 * coverage, abs=BIN)
    assert found.high == pytest.approx(8 + 16 * coverage, abs=BIN)


@pytest.mark.parametrize("coverage", [0.5, 0.99, 0.9999])
def test_the_range_of_a_normal_distribution_is_its_quantiles(coverage: float):
    scores = np.random.default_rng(0).normal(3.0, 5.0, 1_000_000)
    found = covering_range(histogram(scores), coverage=coverage)
    ends = np.quantile(scores, [(1 - coverage) / 2, (1 + coverage) / 2])
    assert [found.low, found.high] == pytest.approx(ends, abs=BIN)
    assert share_outside(histogram(scores), found) <= 1 - coverage


def test_all_of_few_scores_are_inside():
    found = covering_range(histogram(np.array([-3.0, 5.0, 7.0])), coverage=0.9999)
    assert found == Range(-3.0, 7.0 + BIN)


def test_what_lies_beyond_the_bins_reaches_their_end():
    found = covering_range(histogram(np.array([-1e6, 0.0, 1e6])), coverage=1.0)
    assert found == Range(-512.0, 512.0)
    assert share_outside(histogram(np.array([-1e6, 0.0, 1e6])), found) == 2 / 3


@pytest.mark.parametrize(
    ("bounds", "share"),
    [
        (Range(-2.0, 8.0), 0.0),
        (Range(0.0, 8.0), 0.25),
        (Range(-2.0, 3.0), 0.5),
        (Range(-2.0, 5.0 + BIN / 2), 0.25 + 0.25),  # cuts the bin of 5.0
        (Range(100.0, 200.0), 1.0),
    ],
)
def test_the_share_outside(bounds: Range, share: float):
    counts = histogram(np.array([-1.0, 2.0, 5.0, 7.0]))
    assert share_outside(counts, bounds) == share


def test_there_are_as_many_bins_as_counted():
    assert len(bin_edges()) == NUM_BINS + 1
