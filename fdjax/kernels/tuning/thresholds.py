"""Where a threshold should lie, by times with it above and below what was measured."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

NOISE = 0.002
"""Of the time: a choice that is better by less does not replace the one that stands."""


class Comparison(NamedTuple):
    """What was measured of one case, of both ways.

    Attributes:
        at: what of it is compared with the threshold.
        below_us: microseconds where it is below the threshold.
        reached_us: the same where it reaches the threshold.
    """

    at: int
    below_us: float
    reached_us: float


def chosen(points: Sequence[Comparison], before: int) -> int:
    """The threshold by which least time is lost: one of the points', or none's.

    Args:
        points: measured; one at least.
        before: the threshold that stands, and stays unless another is better by more
            than `NOISE`.

    Returns:
        Where what is done from a threshold on gains at none of them, twice the largest.
    """
    at = sorted({point.at for point in points})
    return best({one: lost(points, one) for one in (*at, 2 * at[-1], before)}, before)


def lost(points: Sequence[Comparison], threshold: int) -> float:
    """How much more time than by the better way, on average of the points."""
    shares = (
        (point.reached_us if point.at >= threshold else point.below_us)
        / min(point.below_us, point.reached_us)
        for point in points
    )
    return sum(shares) / len(points) - 1


def best[T: Hashable](losses: Mapping[T, float], before: T) -> T:
    """The choice that loses least; `before`, where that is no more than noise."""
    least = min(losses, key=lambda one: losses[one])
    return before if losses[before] - losses[least] < NOISE else least
