"""Who does what of attention as a picture; needs matplotlib."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Bars(NamedTuple):
    """Items as they are drawn, in the order in which they are taken.

    Attributes:
        takers: which cluster or block has each.
        costs: how long each is.
        is_piece: whether each is a piece of something.
    """

    takers: np.ndarray[Any, np.dtype[np.int64]]
    costs: np.ndarray[Any, np.dtype[np.int64]]
    is_piece: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def turns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of each item, how many its taker has had before."""
        return np.arange(len(self.takers)) // (int(self.takers.max()) + 1)

    @property
    def loads(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What each taker that has work does, in all."""
        every = np.bincount(self.takers, self.costs)
        return every[every > 0]

    @property
    def busiest(self) -> float:
        """What the busiest taker does, in parts of the mean of those with work."""
        return float(self.loads.max() / self.loads.mean())

    def told(self, taker: str, count: int) -> str:
        """The same in words.

        Args:
            taker: what one is called.
            count: how many there are, with work and without.
        """
        busy = len(self.loads)
        of = "" if busy == count else f" of {busy} {taker}{'s' * (busy > 1)} with work"
        return f"{self.busiest:.2f} of the mean{of}"


class Panel(NamedTuple):
    """A plan as it is drawn.

    Attributes:
        title: of what it is.
        bars: who has what.
        names: of items that are whole, and of pieces.
        taker: who takes items.
        unit: of costs.
    """

    title: str
    bars: Bars
    names: tuple[str, str]
    taker: str
    unit: str


def draw(panels: Sequence[Panel], path: pathlib.Path) -> None:
    """Draws what each cluster and each block does, one item above the other.

    Args:
        panels: the plans, one below the other.
        path: the picture; its suffix says the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4 * len(panels)), layout="constrained")
    (*all_axes,) = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_items(axes, panel.bars, panel.names)
        axes.set(title=panel.title, xlabel=panel.taker, ylabel=panel.unit)
    figure.savefig(path)


def _draw_items(axes: "Axes", bars: Bars, names: tuple[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    below, named = np.zeros(int(bars.takers.max()) + 1), set[str]()
    for turn in np.unique(bars.turns):
        now = bars.turns == turn
        for is_piece, name, colour in zip(
            (False, True), names, ("#4c72b0", "#dd8452"), strict=True
        ):
            chosen = now & (bars.is_piece == is_piece)
            label = name if name not in named and chosen.any() else None
            takers, costs = bars.takers[chosen], bars.costs[chosen]
            axes.bar(
                takers, costs, 1.0, below[takers], color=colour, ec="w", lw=0.3,
                label=label,
            )  # fmt: skip
            if label is not None:
                named.add(label)
        below[bars.takers[now]] += bars.costs[now]
    axes.axhline(float(bars.loads.mean()), color="k", lw=0.8, ls="--", label="mean")
    axes.set(xlim=(-0.5, len(below) - 0.5))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.legend(loc="lower right")
