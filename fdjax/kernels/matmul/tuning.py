"""Profiles of `gemv`, `flat` and XLA's dot for one weight, and where they cross.

FlashDecoding++, section 5: an LLM has only few `[N, K]`, so each is measured once for
several M, and the choice at trace time is a look into a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fdjax.kernels.matmul import timing
from fdjax.kernels.matmul.config import candidates, heuristic
from fdjax.kernels.matmul.params import FlatConfig, padded_m
from fdjax.kernels.matmul.table import Shape
from fdjax.kernels.matmul.timing import Way
from fdjax.kernels.op import REFERENCE

GEMV, FLAT = "gemv", "flat"
WAYS = (GEMV, FLAT, REFERENCE)

# A search is quick and then looks at its best few again.
FINALISTS = 3


@dataclass(frozen=True)
class WeightSpec:
    """A weight of a model, without its values.

    Attributes:
        name: of its linear map: qkv, out, gate_up, up, down or head.
        n: rows.
        k: columns.
        dtype: of weight and activations.
        gated: its rows are a gate's and as many `up` rows.
    """

    name: str
    n: int
    k: int
    dtype: jax.typing.DTypeLike
    gated: bool = False

    @property
    def shape(self) -> Shape:
        """As tables name it."""
        return self.n, self.k, jnp.dtype(self.dtype).name


@dataclass(frozen=True)
class Point:
    """Microseconds of one GEMM of M rows, by the implementations that serve it."""

    m: int
    us: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """What was measured of one weight.

    Attributes:
        weight: the weight.
        points: by M, rising.
        flat: the fastest launch config of `flat` by padded M.
        searched: microseconds of every launch config tried, by padded M.
    """

    weight: WeightSpec
    points: tuple[Point, ...]
    flat: dict[int, FlatConfig] = field(default_factory=dict[int, FlatConfig])
    searched: dict[int, dict[FlatConfig, float]] = field(
        default_factory=dict[int, dict[FlatConfig, float]]
    )

    @property
    def inflection_points(self) -> tuple[int, int]:
        """M1 and M2."""
        return inflection_points(self.points)

    def row(self, **provenance: str) -> dict[str, Any]:
        """As a row of the table.

        Args:
            provenance: how and when it was measured.
        """
        gemv_up_to, flat_up_to = self.inflection_points
        us = [
            {"m": point.m, **{way: round(t, 2) for way, t in point.us.items()}}
            for point in self.points
        ]
        searched = {
            str(m): [{**vars(flat), "us": round(t, 2)} for flat, t in tried.items()]
            for m, tried in self.searched.items()
        }
        return {
            "n": self.weight.n,
            "k": self.weight.k,
            "gemv_up_to": gemv_up_to,
            "flat_up_to": flat_up_to,
            "flat": {str(m): vars(flat) for m, flat in self.flat.items()},
            "dtype": jnp.dtype(self.weight.dtype).name,
            **provenance,
            "us": us,
            "searched": searched,
        }


class Times(Protocol):
    """Measures one weight; see `timing.Stopwatch`."""

    def microseconds(
        self, ways: Sequence[Way], m: int, *, repeats: int = 5, launches: int = 3
    ) -> list[float]:
        """Medians of one GEMM, in the order of `ways`."""
        ...


def refusals(weight: WeightSpec, ms: Sequence[int]) -> dict[str, str]:
    """Why `gemv` or `flat` serves a weight for no M of these, by implementation."""
    found: dict[str, str] = {}
    for way in (GEMV, FLAT):
        reasons = [timing.refuse(way, m, *_sizes(weight)) for m in ms]
        if reasons and None not in reasons:
            found[way] = str(reasons[0])
    return found


def profile(
    weight: WeightSpec,
    ms: Sequence[int],
    *,
    times: Callable[[int, int, jax.typing.DTypeLike], Times],
    on_point: Callable[[], None] = lambda: None,
) -> Profile:
    """Measures `gemv`, the candidates of `flat`, and XLA's dot.

    Args:
        weight: what to measure; its copies are made, and gone at the end.
        ms: rows of x, rising.
        times: makes what measures an `[N, K]` of a type: `timing.Stopwatch`.
        on_point: called after every M.
    """
    watch = times(*_sizes(weight))
    flat: dict[int, FlatConfig] = {}
    searched: dict[int, dict[FlatConfig, float]] = {}
    served = [m for m in ms if _serves(FLAT, m, weight)]
    for padded, m in {padded_m(m): m for m in served}.items():
        flat[padded], searched[padded] = _search(weight, m, watch)
    points: list[Point] = []
    for m in ms:
        ways = {way: _way(way, m, flat) for way in WAYS if _serves(way, m, weight)}
        us = watch.microseconds(list(ways.values()), m)
        points.append(Point(m, dict(zip(ways, us, strict=True))))
        on_point()
    return Profile(weight, tuple(points), flat, searched)


def inflection_points(points: Sequence[Point]) -> tuple[int, int]:
    """M1 and M2: `gemv` serves up to M1, `flat` above it up to M2, then XLA's dot.

    Where the curves of two implementations cross once, these are the crossings, and at
    a tie the one named first here serves. Measured curves may cross several times by
    noise: then M1 and M2 lose least time in all, as a share of the best at every M.

    Args:
        points: by M, rising; XLA's dot serves all.
    """
    found = ((0, 0), _loss(points, 0, 0))
    for gemv_up_to in (0, *_served(points, GEMV)):
        for flat_up_to in (gemv_up_to, *_served(points, FLAT)):
            if flat_up_to < gemv_up_to:
                continue
            loss = _loss(points, gemv_up_to, flat_up_to)
            # Of equals, the one in which `gemv`, then `flat`, serves longer.
            if loss <= found[1]:
                found = ((gemv_up_to, flat_up_to), loss)
    return found[0]


def way_of(m: int, gemv_up_to: int, flat_up_to: int) -> str:
    """Which implementation the inflection points choose for M rows."""
    return GEMV if m <= gemv_up_to else FLAT if m <= flat_up_to else REFERENCE


def _loss(points: Sequence[Point], gemv_up_to: int, flat_up_to: int) -> float:
    """Time lost to the best choice, as shares of it, over all M."""
    lost = 0.0
    for m, us in ((point.m, point.us) for point in points):
        way = way_of(m, gemv_up_to, flat_up_to)
        lost += us.get(way, float("inf")) / min(us.values()) - 1
    return lost


def _served(points: Sequence[Point], way: str) -> list[int]:
    return [point.m for point in points if way in point.us]


def _search(
    weight: WeightSpec, m: int, watch: Times
) -> tuple[FlatConfig, dict[FlatConfig, float]]:
    """The fastest launch config of `flat`, and the time of each."""
    tried = _candidates(weight, m)
    us = watch.microseconds(tried, m, repeats=3, launches=1)
    found = dict(zip(tried, us, strict=True))
    finalists = sorted(found, key=found.__getitem__)[:FINALISTS]
    us = watch.microseconds(finalists, m)
    again = dict(zip(finalists, us, strict=True))
    return min(again, key=again.__getitem__), found | again


def _candidates(weight: WeightSpec, m: int) -> list[FlatConfig]:
    """Each once; the gate and the up rows of one column need a tile each."""
    every = (heuristic(m, weight.n, weight.k), *candidates(m, weight.n))
    return [
        flat for flat in dict.fromkeys(every) if flat.tiles == 2 or not weight.gated
    ]


def _serves(way: str, m: int, weight: WeightSpec) -> bool:
    return timing.refuse(way, m, *_sizes(weight)) is None


def _way(way: str, m: int, flat: Mapping[int, FlatConfig]) -> Way:
    return flat[padded_m(m)] if way == FLAT else way


def _sizes(weight: WeightSpec) -> tuple[int, int, jax.typing.DTypeLike]:
    return weight.n, weight.k, weight.dtype
