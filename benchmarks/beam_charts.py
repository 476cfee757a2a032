"""The charts of what `benchmarks.beams` has measured, a bar a row."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.svg import WIDTH, bar, drawing, text, upright

MEASURES = {
    "steps": ("ms_per_step",),
    "fig6": ("gb_s",),
    "fig7": ("first_ms", "ms_per_step"),
    "fig8": ("first_ms", "ms_per_step"),
    "fig9": ("requests_per_s",),
}
"""What is drawn of each case, a chart each."""
_WORDS = {
    "ms_per_step": "ms a step",
    "first_ms": "ms to the first token",
    "gb_s": "GB/s of attention",
    "requests_per_s": "requests a second",
}
_LETTER = 6.8
"""Of a label, its width."""


def write(rows: Sequence[dict[str, Any]], folder: pathlib.Path, device: str) -> None:
    """Draws every case that there are results of.

    Args:
        rows: of `beams.json`.
        folder: of the charts.
        device: in their names.
    """
    there = {row["case"] for row in rows}
    for name, (case, measure) in names(device).items():
        if case in there:
            (folder / name).write_text(chart_of(rows, case, measure, device))


def names(device: str) -> dict[str, tuple[str, str]]:
    """The case and the measure of each chart, by its file."""
    return {
        f"beams-{case}-{measure.replace('_', '-')}-{device}.svg": (case, measure)
        for case, measures in MEASURES.items()
        for measure in measures
    }


def chart_of(
    rows: Sequence[dict[str, Any]], case: str, measure: str, device: str
) -> str:
    """Bars of one measure of one case."""
    return chart([row for row in rows if row["case"] == case], measure, device)


def chart(rows: Sequence[dict[str, Any]], measure: str, device: str) -> str:
    """Bars of one measure."""
    title = f"Beam search, {_WORDS[measure]}, on {device}"
    height = 56 + 24 * len(rows)
    return drawing(height, title, _parts(rows, measure, title, height))


def _parts(
    rows: Sequence[dict[str, Any]], measure: str, title: str, height: int
) -> Iterator[str]:
    labels, most = [*map(_label, rows)], max(row[measure] for row in rows)
    left = 10 + _LETTER * max(map(len, labels))
    yield text(0, 18, title, kind="title")
    yield upright(left, 32, height - 10)
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y, width = 38 + 24 * place, (WIDTH - left - 80) * row[measure] / most
        yield text(left - 10, y + 13, label, anchor="end")
        kind = "a" if row["engine"] == "fdjax" else "b"
        yield bar(left, y, width, 16, kind=kind)
        yield text(left + width + 6, y + 13, f"{row[measure]:.4g}", kind="faint")


def _label(row: dict[str, Any]) -> str:
    """What a bar is of."""
    wide = f"{row['prompts']} x {row['beams']} beams"
    if not row["beams"]:
        wide = f"{row['prompts']} rows"
    words = (row["engine"], row.get("model", ""), wide, f"{row['context']} in")
    return ", ".join(filter(None, words))
