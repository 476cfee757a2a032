"""`fdjax calibrate`'s findings as tables."""

from rich.table import Table

from fdjax.cli.tables import pairs, print_all, titled
from fdjax.models.calibration import Calibration, Range


def show(calibration: Calibration) -> None:
    """Writes a calibration to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    print_all(_summary(calibration), _texts(calibration), _layers(calibration))


def _summary(calibration: Calibration) -> Table:
    share = f"{calibration.coverage:.6g} of them in"
    lines = {"scores": f"{share} {_shown(calibration.scores)}"}
    if calibration.row_maxima is not None:
        lines["largest of a row"] = f"{share} {_shown(calibration.row_maxima)}"
    lines["scheme"] = calibration.scheme
    unified = calibration.unified
    if unified is None:
        lines["because"] = calibration.reason or ""
    else:
        lines["phi, low, high"] = f"{unified.phi:g}, {unified.low:g}, {unified.high:g}"
        bounds = Range(unified.phi + unified.low, unified.phi + unified.high)
        lines["bounds"] = f"{_shown(bounds)} (margin {calibration.margin:g})"
    return pairs(f"Softmax of {', '.join(calibration.models)}\n", lines)


def _texts(calibration: Calibration) -> Table:
    """What each text would have computed again."""
    table = titled("\nRows times query heads computed again")
    for name in ("text", "tokens", "with these bounds", "with the scores' range"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for text in calibration.texts:
        rate = "" if text.recomputed is None else f"{text.recomputed:.4%}"
        table.add_row(text.text, f"{text.tokens:,}", rate, f"{text.beyond_scores:.4%}")
    return table


def _layers(calibration: Calibration) -> Table:
    table = titled("\nRanges by layer")
    for name in ("layer", "scores", "largest of a row"):
        table.add_column(name, justify="right")
    for index, layer in enumerate(calibration.layers):
        table.add_row(str(index), _shown(layer.scores), _shown(layer.row_maxima))
    return table


def _shown(scores: Range) -> str:
    return f"{scores.low:g} to {scores.high:g}"
