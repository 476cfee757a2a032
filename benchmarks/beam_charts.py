"""The charts of what `benchmarks.beams` has measured, a bar a row."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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


def charts(rows: Sequence[dict[str, Any]], device: str) -> dict[str, Callable[[], str]]:
    """What draws every case that there are results of, by its file's name.

    Args:
        rows: of `beams.json`.
        device: in names and titles.
    """
    return {
        f"beams-{case}-{measure.replace('_', '-')}-{device}.svg": partial(
            chart, own, measure, device
        )
        for case, measures in MEASURES.items()
        if (own := [row for row in rows if row["case"] == case])
        for measure in measures
    }


def write(rows: Sequence[dict[str, Any]], folder: pathlib.Path, device: str) -> None:
    """Draws every case into a folder."""
    for name, draw in charts(rows, device).items():
        (folder / name).write_text(draw())


def chart(rows: Sequence[dict[str, Any]], measure: str, device: str) -> str:
    """Bars of one measure; what all rows have in common stands above them."""
    title = f"Beam search, {_WORDS[measure]}, on {device}"
    height = 76 + 24 * len(rows)
    return drawing(height, title, _parts(rows, measure, title, height))


def _parts(
    rows: Sequence[dict[str, Any]], measure: str, title: str, height: int
) -> Iterator[str]:
    left, most = 280, max(row[measure] for row in rows)
    names = [_names(row) for row in rows]
    common = [one[0] for one in map(_once, zip(*names, strict=True)) if len(one) == 1]
    yield text(0, 18, title, kind="title")
    yield text(0, 38, ", ".join(filter(None, common)), kind="faint")
    yield upright(left, 52, height - 10)
    for place, (row, own) in enumerate(zip(rows, names, strict=True)):
        y, width = 58 + 24 * place, (WIDTH - left - 80) * row[measure] / most
        words = ", ".join(one for one in own if one not in common)
        yield text(left - 10, y + 13, words, anchor="end")
        kind = "a" if row["engine"] == "fdjax" else "b"
        yield bar(left, y, width, 16, kind=kind)
        yield text(left + width + 6, y + 13, _short(row[measure]), kind="faint")


def _names(row: dict[str, Any]) -> tuple[str, ...]:
    """The engine without its plugin's version, the model, what runs, and prompts."""
    wide = f"{row['prompts']} x {row['beams']} beams"
    if not row["beams"]:
        wide = f"{row['prompts']} rows"
    engine = row["engine"].partition(",")[0]
    return engine, row.get("model", ""), wide, f"{row['context']} in"


def _once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _short(value: float) -> str:
    """Three digits, or all in front of the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
