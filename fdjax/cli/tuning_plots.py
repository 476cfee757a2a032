"""`fdjax tune`'s findings as a picture; needs matplotlib.

As figures 7 and 9c of FlashDecoding++: the times of gemv, flat and XLA's dot over M,
and which of them the inflection points choose for each shape and M.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

from fdjax.cli.tuning_tables import SHORT, TITLES
from fdjax.kernels.matmul.tuning import WAYS, Profile, way_of

_COLORS = dict(zip(WAYS, ("tab:blue", "tab:red", "tab:gray"), strict=True))
_COLUMNS = 5


def draw(profiles: Sequence[Profile], path: pathlib.Path) -> None:
    """Draws one panel a shape, and the map of choices below.

    Args:
        profiles: at least one, all of the same M.
        path: the picture; its suffix says the format.
    """
    from matplotlib.figure import Figure

    rows = -(-len(profiles) // _COLUMNS)
    columns = min(len(profiles), _COLUMNS)
    heights = (2.8 * rows, 1.2 + 0.3 * len(profiles[0].points))
    width = max(3.2 * columns, 1.3 * len(profiles) + 2)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    panels = above.subplots(rows, columns, squeeze=False).flat
    for axes, profile in zip(panels, profiles, strict=False):
        _times(axes, profile)
    for axes in panels[len(profiles) :]:
        axes.set_axis_off()
    lines, names = panels[0].get_legend_handles_labels()
    above.legend(lines, names, loc="outside upper center", ncols=len(names))
    panels[0].set_ylabel("time / fastest of the shape")
    _choices(below.subplots(), profiles)
    figure.savefig(path)


def _times(axes: Any, profile: Profile) -> None:
    fastest = min(us for point in profile.points for us in point.us.values())
    for way in WAYS:
        served = [point for point in profile.points if way in point.us]
        axes.plot(
            [point.m for point in served],
            [point.us[way] / fastest for point in served],
            marker="o",
            color=_COLORS[way],
            label=TITLES[way],
        )
    for place in profile.inflection_points:
        if place:
            axes.axvline(place, linestyle=":", color="black")
    ms = [point.m for point in profile.points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ms, map(str, ms))
    axes.set(xlabel="M", title=_name(profile))


def _choices(axes: Any, profiles: Sequence[Profile]) -> None:
    from matplotlib.colors import ListedColormap

    ms = [point.m for point in profiles[0].points]
    chosen = [[way_of(m, *p.inflection_points) for p in profiles] for m in ms]
    axes.imshow(
        [[WAYS.index(way) for way in row] for row in chosen],
        cmap=ListedColormap([_COLORS[way] for way in WAYS]),
        vmin=0,
        vmax=len(WAYS) - 1,
        aspect="auto",
        alpha=0.6,
        origin="lower",
    )
    for y, row in enumerate(chosen):
        for x, way in enumerate(row):
            axes.text(x, y, SHORT[way], ha="center", va="center", fontsize="small")
    axes.set_xticks(range(len(profiles)), map(_name, profiles), fontsize="small")
    axes.set_yticks(range(len(ms)), map(str, ms))
    axes.set(ylabel="M", title="; ".join(TITLES.values()))


def _name(profile: Profile) -> str:
    weight = profile.weight
    return f"{weight.name}\n[{weight.n}, {weight.k}]"
