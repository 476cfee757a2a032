"""Who serves how many rows in a chain: found from times, and followed by programs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.kernels.layer_program import config
from fdjax.kernels.layer_program.table import PART, ChainRows
from fdjax.kernels.matmul.params import (
    FlatConfig,
    GemmConfig,
    GemvConfig,
    LibraryConfig,
)
from fdjax.kernels.tuning.chain import LIBRARY, MOST, chosen, only, profile, serving

ROWS = ChainRows(candidates={(256, 64, 64): 1})
KINDS = {
    "gemv": GemvConfig,
    "flat": FlatConfig,
    "gemm": GemmConfig,
    LIBRARY: LibraryConfig,
}


class Curves:
    """Microseconds of each kernel by a start and a slope, and noise at one M."""

    def __init__(self, noisy: int = 0) -> None:
        self._noisy = noisy
        self.asked: list[tuple[int, str]] = []

    def microseconds(self, rows: ChainRows, m: int) -> float:
        up_to = (rows.gemv_up_to, rows.flat_up_to, rows.gemm_up_to)
        name = serving(m, up_to)
        assert rows.candidates == ROWS.candidates
        self.asked.append((m, name))
        start, slope = {
            "gemv": (10, 2.5),
            "flat": (14, 0.1),
            "gemm": (18, 0.02),
            LIBRARY: (20, 0.001),
        }[name]
        return start + slope * m + (3 if m == self._noisy and name == "flat" else 0)


MS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256)


def test_each_kernel_is_timed_where_it_serves():
    times, points = Curves(), []
    found = profile(times, MS, ROWS, on_point=lambda: points.append(None))
    assert len(points) == len(found) == len(MS)
    assert sorted(times.asked) == sorted((m, name) for m in MS for name in found[m])
    for name, most in MOST.items():
        assert [m for m in MS if name in found[m]] == [m for m in MS if m <= most]
    assert all(LIBRARY in us for us in found.values())


def test_the_rows_are_where_curves_cross():
    found = chosen(profile(Curves(), MS, ROWS), ROWS)
    # gemv and flat at 1.7; flat and gemm at 50; gemm and the library at 105.
    assert (found.gemv_up_to, found.flat_up_to, found.gemm_up_to) == (1, 32, 96)
    assert found.candidates == ROWS.candidates


def test_one_noisy_time_decides_nothing_above_it():
    found = chosen(profile(Curves(noisy=16), MS, ROWS), ROWS)
    assert (found.gemv_up_to, found.flat_up_to) == (1, 32)


@given(
    st.dictionaries(
        st.sampled_from(MS),
        st.fixed_dictionaries(dict.fromkeys((*MOST, LIBRARY), st.floats(1.0, 100.0))),
        min_size=1,
        max_size=4,
    )
)
def test_no_other_rows_lose_less(us: dict[int, dict[str, float]]):
    points = {
        m: {n: t for n, t in each.items() if m <= MOST.get(n, math.inf)}
        for m, each in us.items()
    }

    def loss(*up_to: int) -> float:
        least = {m: min(each.values()) for m, each in points.items()}
        return sum(
            points[m].get(serving(m, up_to), math.inf) / least[m] - 1 for m in points
        )

    found = chosen(points, ROWS)
    best = loss(found.gemv_up_to, found.flat_up_to, found.gemm_up_to)
    ends = [0, *sorted(points)]
    for gemv in ends:
        for flat in (m for m in ends if m >= gemv):
            assert best <= min(loss(gemv, flat, m) for m in ends if m >= flat) + 1e-9


@pytest.mark.parametrize("kernel", KINDS)
def test_programs_choose_by_what_is_used(kernel: str):
    m = min(MOST.get(kernel, 300), 3)
    with PART.using(only(kernel, ROWS)):
        assert isinstance(config.choose(m, 4096, 4096), KINDS[kernel])
        assert PART.find().candidates == ROWS.candidates
    assert PART.find() != only(kernel, ROWS)
