"""Up to how many rows each kernel serves the GEMMs of a chain, by times of steps.

FlashDecoding++ (section 5) chooses by inflection points M1 and M2 of each GEMM alone.
In a chain kernels of one kind start beside the end of each other, so that all GEMMs of
a step have the same kernel here, and steps are what is timed.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.matmul.params import MAX_FLAT_M, MAX_GEMM_M, MAX_GEMV_M

MOST = {"gemv": MAX_GEMV_M, "flat": MAX_FLAT_M, "gemm": MAX_GEMM_M}
"""The most rows that a kernel takes, by its name, in the order in which they serve."""
LIBRARY = "library"
"""What serves more: cuBLASLt, and `persistent` where there is a gate."""

type Points = Mapping[int, Mapping[str, float]]
"""Microseconds of a layer by M, and by the kernel that served all GEMMs."""


class Times(Protocol):
    """Measures steps; see `fdjax.generate.chain_times`."""

    def microseconds(self, rows: ChainRows, m: int) -> float:
        """The median of a layer in a step of M rows, where `rows` chooses kernels."""
        ...


def only(kernel: str, rows: ChainRows) -> ChainRows:
    """Those by which a kernel serves as many rows as it can, and none before it any.

    Args:
        kernel: one of `MOST`, or `LIBRARY`.
        rows: whose other choices stay.
    """
    up_to = {"gemv": 0, "flat": 0, "gemm": 0}
    names = [*MOST, LIBRARY]
    for name in names[names.index(kernel) : -1]:
        up_to[name] = MOST[kernel]
    return replace(
        rows,
        gemv_up_to=up_to["gemv"],
        flat_up_to=up_to["flat"],
        gemm_up_to=up_to["gemm"],
    )


def profile(
    times: Times,
    ms: Sequence[int],
    rows: ChainRows,
    *,
    on_point: Callable[[], None] = lambda: None,
) -> Points:
    """Times each kernel that takes them at every M.

    Args:
        times: measures.
        ms: rows of x.
        rows: whose other choices stay.
        on_point: called after every M.
    """
    points: dict[int, dict[str, float]] = {}
    for m in sorted(ms):
        serving = [name for name, most in MOST.items() if m <= most] + [LIBRARY]
        points[m] = {name: times.microseconds(only(name, rows), m) for name in serving}
        on_point()
    return points


def chosen(points: Points, rows: ChainRows) -> ChainRows:
    """The rows that lose least time in all, as shares of the best kernel at each M.

    Of equals, those in which a kernel serves longer, the first of all before others.

    Args:
        points: measured; the last kernel serves every M.
        rows: whose other choices stay.
    """
    measured = {
        name: [0, *(m for m, us in sorted(points.items()) if name in us)]
        for name in MOST
    }
    rising = (
        up_to
        for up_to in itertools.product(*measured.values())
        if list(up_to) == sorted(up_to)
    )
    gemv, flat, gemm = min(
        rising, key=lambda up_to: (_loss(points, up_to), *_less(up_to))
    )
    return replace(rows, gemv_up_to=gemv, flat_up_to=flat, gemm_up_to=gemm)


def serving(m: int, up_to: Sequence[int]) -> str:
    """Which kernel serves M rows, where each serves up to so many."""
    for name, most in zip(MOST, up_to, strict=True):
        if m <= most:
            return name
    return LIBRARY


def _loss(points: Points, up_to: Sequence[int]) -> float:
    lost = 0.0
    for m, us in points.items():
        lost += us.get(serving(m, up_to), float("inf")) / min(us.values()) - 1
    return lost


def _less(up_to: Sequence[int]) -> list[int]:
    return [-most for most in up_to]
