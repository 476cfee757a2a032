"""Thresholds, from times that are made up."""

import pytest

from fdjax.kernels.tuning.thresholds import NOISE, Comparison, best, chosen, lost


def _points(*reached: float) -> list[Comparison]:
    """Of 1, 2, 4 and so on, that take 10 us below the threshold."""
    return [Comparison(2**i, 10.0, us) for i, us in enumerate(reached)]


@pytest.mark.parametrize(
    ("reached", "threshold"),
    [
        ((12, 11, 9, 8), 4),
        ((9, 8, 7, 6), 1),
        ((14, 13, 12, 11), 16),
        ((12, 9, 10.5, 8), 2),  # one that is noisy decides for none but itself
    ],
    ids=["between", "always", "never", "noisy"],
)
def test_the_threshold_loses_least(reached: tuple[float, ...], threshold: int):
    assert chosen(_points(*reached), before=6) == threshold


def test_what_stands_stays_where_another_is_as_good():
    points = _points(12, 11, 9, 8)
    assert chosen(points, before=3) == 3, "no point lies between 3 and 4"
    noisy = _points(12, 10 - NOISE, 9, 8)
    assert chosen(noisy, before=4) == 4
    assert chosen(noisy, before=8) == 2


def test_what_is_lost_is_a_share_of_the_better_way():
    points = [Comparison(1, 10, 20), Comparison(2, 10, 5)]
    assert lost(points, 1) == pytest.approx(0.5)
    assert lost(points, 2) == 0
    assert lost(points, 3) == pytest.approx(0.5)


def test_the_best_of_choices():
    assert best({"a": 1.0, "b": 0.5}, "a") == "b"
    assert best({"a": 1.0, "b": 1 - NOISE / 2}, "a") == "a"
