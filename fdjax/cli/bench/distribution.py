"""What many times have in common: percentiles, or a median with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Distribution:
    """Many values in a few numbers, in their unit.

    Percentiles between two values are interpolated linearly.

    Attributes:
        count: how many values.
        mean: their mean.
        p50: the median.
        p90: nine in ten are not above it.
        p99: ninety-nine in a hundred are not above it.
        largest: the largest.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    largest: float

    @staticmethod
    def of(values: Sequence[float]) -> "Distribution | None":
        """Of these values; `None` where there are none."""
        if not values:
            return None
        p50, p90, p99 = (float(np.percentile(values, q)) for q in PERCENTILES)
        return Distribution(
            count=len(values),
            mean=statistics.fmean(values),
            p50=p50,
            p90=p90,
            p99=p99,
            largest=max(values),
        )


@dataclass(frozen=True)
class Spread:
    """A few repeats of one measurement, in their unit.

    Attributes:
        median: of the repeats.
        smallest: of the repeats.
        largest: of the repeats.
        spread: (largest - smallest) / median.
        values: the repeats, in their order.
    """

    median: float
    smallest: float
    largest: float
    spread: float
    values: tuple[float, ...]

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Of these repeats, at least one; all above 0."""
        median, low, high = statistics.median(values), min(values), max(values)
        return Spread(median, low, high, (high - low) / median, tuple(values))
