"""Histograms of attention scores as a picture; needs matplotlib."""

import importlib.util
import pathlib

import numpy as np

from fdjax.errors import ConfigError, to_install
from fdjax.generate.score_histograms import BINS_PER_UNIT, NUM_BINS
from fdjax.models.calibration import Calibration
from fdjax.serve.calibrate import Measured
from fdjax.serve.score_ranges import bin_edges


def check_plots(path: pathlib.Path) -> None:
    """Makes sure that a picture can be drawn, before anything is computed for it.

    Args:
        path: where to; its suffix says the format.

    Raises:
        ConfigError: matplotlib is not installed, or does not know the format.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; leave --plot out, or "
            f"{to_install('plots')}"
        )
    from matplotlib.figure import Figure

    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ConfigError(
            f"--plot {path} ends in {path.suffix!r}, which is no format of a picture; "
            f"use one of {', '.join(formats)}"
        )


def draw(calibration: Calibration, measured: Measured, path: pathlib.Path) -> None:
    """Draws the densities of all scores and of rows' largest ones, and the bounds.

    Args:
        calibration: what was made of them.
        measured: the histograms.
        path: the picture; its suffix says the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for histograms, name in (
        (measured.scores, "scores"),
        (measured.row_maxima, "largest score of a row"),
    ):
        counts = histograms.reshape(-1, NUM_BINS).sum(axis=0)
        held = np.flatnonzero(counts)
        places = slice(held[0], held[-1] + 1)
        density = counts[places] / counts.sum() * BINS_PER_UNIT
        axes.stairs(density, bin_edges()[held[0] : held[-1] + 2], label=name)
    unified = calibration.unified
    if unified is not None:
        for end in (unified.low, unified.high):
            axes.axvline(unified.phi + end, linestyle="--", color="gray")
        axes.axvline(unified.phi, linestyle=":", color="gray", label="phi, bounds")
    axes.set(
        yscale="log",
        xlabel="score",
        ylabel="density",
        title=f"{', '.join(calibration.models)} on {measured.text}",
    )
    axes.legend()
    figure.savefig(path)
