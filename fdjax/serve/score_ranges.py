"""What histograms of attention scores say: ranges, and how much lies outside."""

import numpy as np

from fdjax.generate.score_histograms import BINS_PER_UNIT, LIMIT, NUM_BINS
from fdjax.models.calibration import Range


def bin_edges() -> np.ndarray:
    """Edges of the bins, `[NUM_BINS + 1]`."""
    return np.arange(NUM_BINS + 1) / BINS_PER_UNIT - LIMIT


def covering_range(counts: np.ndarray, *, coverage: float) -> Range:
    """The range that holds a share of what was counted, at bin edges.

    Half of the rest may lie below it, and half above; where few were counted, the range
    holds more.

    Args:
        counts: histograms, `[..., NUM_BINS]`, not all empty.
        coverage: share inside.
    """
    counts = counts.reshape(-1, NUM_BINS).sum(axis=0)
    tail = counts.sum() * (1.0 - coverage) / 2
    first = int(np.argmax(np.cumsum(counts) > tail))
    last = NUM_BINS - 1 - int(np.argmax(np.cumsum(counts[::-1]) > tail))
    edges = bin_edges()
    return Range(float(edges[first]), float(edges[last + 1]))


def share_outside(counts: np.ndarray, bounds: Range) -> float:
    """The share of what was counted that leaves a range.

    A bin that an end of the range cuts in two counts as outside. So do the outermost
    ones, which hold what lies beyond all bins.

    Args:
        counts: histograms, `[..., NUM_BINS]`, not all empty.
        bounds: the range.
    """
    counts = counts.reshape(-1, NUM_BINS).sum(axis=0)
    edges = bin_edges()
    outside = (edges[:-1] < bounds.low) | (edges[1:] > bounds.high)
    outside[[0, -1]] = True
    return float(counts[outside].sum() / counts.sum())
