"""A run against a server as a picture; needs matplotlib."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fdjax.cli.bench.distribution import PERCENTILES
from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.serve_tables import TITLES
from fdjax.cli.bench.summary import seconds_of

_SHOWN = ("ttft", "itl", "e2e")
_DECADES = 100  # between the smallest and the largest value of a logarithmic axis


def draw(
    outcomes: Sequence[Outcome],
    limits_ms: Mapping[str, float],
    path: pathlib.Path,
    *,
    title: str,
) -> None:
    """Draws how latencies are distributed, and requests under way over time.

    Args:
        outcomes: of every request.
        limits_ms: of goodput, as dashed lines; that of "itl" is a limit of a request's
            mean, and the curve is of single gaps.
        path: the picture; its suffix says the format.
        title: stands above.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.5), layout="constrained")
    figure.suptitle(title, parse_math=False)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3, 2)).flat
    completed = [one for one in outcomes if one.error is None]
    for axes, name in zip(above.subplots(1, len(_SHOWN)), _SHOWN, strict=True):
        values_ms = [1e3 * value for value in seconds_of(name, completed)]
        _distribution(axes, values_ms, limits_ms.get(name))
        axes.set_xlabel(f"{TITLES[name]}, ms")
    _timeline(below.subplots(), outcomes)
    figure.savefig(path)


def _distribution(axes: Any, values_ms: Sequence[float], limit: float | None) -> None:
    """The share of values that are not above x, and the percentiles."""
    axes.set(ylim=(0, 1.02), ylabel="share")
    if values_ms:
        axes.ecdf(values_ms)
        for percentile in PERCENTILES:
            value = float(np.percentile(values_ms, percentile))
            label = f"p{percentile}: {value:,.1f}"
            axes.plot(value, percentile / 100, "o", label=label)
        if 0 < _DECADES * min(values_ms) < max(values_ms):
            axes.set_xscale("log")
    if limit is not None:
        axes.axvline(limit, linestyle="--", color="gray", label=f"limit: {limit:g}")
    if values_ms or limit is not None:
        axes.legend(loc="lower right", fontsize="small")


def _timeline(axes: Any, outcomes: Sequence[Outcome]) -> None:
    times, running = under_way(outcomes)
    axes.step(times, running, where="post", label="requests under way")
    failed = [one.end_s for one in outcomes if one.error is not None]
    if failed:
        axes.plot(failed, np.zeros(len(failed)), "x", color="tab:red", label="failed")
    axes.set(xlabel="seconds", ylabel="requests")
    axes.set_ylim(bottom=-0.02 * max(running))
    axes.legend(loc="upper right", fontsize="small")


def under_way(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    """Times at which the number of requests under way changes, and the new number."""
    changes = [(one.sent_s, 1) for one in outcomes]
    changes += [(one.end_s, -1) for one in outcomes]
    changes.sort()
    counts = np.cumsum([change for _, change in changes])
    return [time for time, _ in changes], counts.tolist()
