"""The charts of `benchmarks.highest_throughput`: Fig. 11, and its batches, Fig. 12."""

import itertools
from collections.abc import Iterator, Sequence

from benchmarks.svg import WIDTH, across, bar, drawing, line, text, upright
from benchmarks.tables import Row

COLOURS = {"fdjax": "a", "vllm": "b", "transformers": "c"}
"""Of engines, in their order."""
_LEFT, _STEP = 240, 24
_FIELD = (380, 190)
"""Width and height of a model's drawing."""
_PLOT = (56, 40, 300, 110)
"""Left, top, width and height of the lines in it."""


def highest(rows: Sequence[Row]) -> list[Row]:
    """Of each engine, model and length of prompts, the row of most tokens a second."""
    best: dict[tuple[str, int, str], Row] = {}
    for row in sorted(fitting(rows), key=_place):
        key = _place(row)
        if key not in best or row["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = row
    return list(best.values())


def fitting(rows: Sequence[Row]) -> list[Row]:
    """Without the batches that did not fit an engine."""
    return [row for row in rows if row["tokens_per_s"] is not None]


def _place(row: Row) -> tuple[str, int, str]:
    names = [*COLOURS, row["engine"]]
    return row["model"], row["input"], f"{names.index(row['engine'])} {row['engine']}"


def _colour(row: Row) -> str:
    return COLOURS.get(row["engine"], "b")


def chart(rows: Sequence[Row], device_name: str) -> str:
    """Fig. 11: bars of the highest throughput, each with its batch."""
    best = highest(rows)
    title = f"Highest throughput, {_outputs(rows)} tokens of output, on {device_name}"
    return drawing(56 + _STEP * len(best), title, _parts(best, title))


def _outputs(rows: Sequence[Row]) -> str:
    return ", ".join(map(str, sorted({row["output"] for row in rows})))


def _parts(rows: Sequence[Row], title: str) -> Iterator[str]:
    span = WIDTH - _LEFT - 170
    most = max(row["tokens_per_s"] for row in rows)
    yield text(0, 18, title, kind="title")
    yield upright(_LEFT, 32, 46 + _STEP * len(rows))
    for place, row in enumerate(rows):
        y, width = 38 + _STEP * place, span * row["tokens_per_s"] / most
        words = f"{row['engine']}, {row['model']}, {row['input']} in"
        yield text(_LEFT - 10, y + 13, words, anchor="end")
        yield bar(_LEFT, y, width, 16, kind=_colour(row))
        told = f"{row['tokens_per_s']:,.0f} tokens/s at {row['batch']} rows"
        yield text(_LEFT + width + 6, y + 13, told, kind="faint")


def batches(rows: Sequence[Row], device_name: str) -> str:
    """Fig. 12: tokens a second over batches, a field for each model and length.

    A line ends where the next batch does not fit.
    """
    shown = sorted(fitting(rows), key=lambda row: (*_place(row), row["batch"]))
    fields = [
        [*some]
        for _, some in itertools.groupby(
            shown, lambda row: (row["model"], row["input"])
        )
    ]
    title = f"Tokens a second over batches, {_outputs(rows)} of output, {device_name}"
    height = 60 + -(-len(fields) // 2) * _FIELD[1]
    return drawing(height, title, _batch_parts(fields, title))


def _batch_parts(fields: Sequence[Sequence[Row]], title: str) -> Iterator[str]:
    engines = {row["engine"]: _colour(row) for some in fields for row in some}
    yield text(0, 18, title, kind="title")
    for number, (engine, kind) in enumerate(engines.items()):
        x = 120 * number
        yield bar(x, 34, 10, 10, kind=kind) + text(x + 16, 43, engine)
    for number, some in enumerate(fields):
        x, y = number % 2 * _FIELD[0], 60 + number // 2 * _FIELD[1]
        yield text(x, y + 20, f"{some[0]['model']}, {some[0]['input']:,} in")
        yield from _lines(x + _PLOT[0], y + _PLOT[1], some)


def _lines(x: float, y: float, rows: Sequence[Row]) -> Iterator[str]:
    """One field: batches stand equally far apart."""
    _, _, wide, high = _PLOT
    sizes = sorted({row["batch"] for row in rows})
    most = max(row["tokens_per_s"] for row in rows)
    step = wide / max(len(sizes) - 1, 1)
    for share in (0.0, 0.5, 1.0):
        height = y + high * (1 - share)
        yield across(height, x, x + wide)
        words = f"{most * share:,.0f}"
        yield text(x - 6, height + 4, words, kind="faint", anchor="end")
    for place, size in enumerate(sizes):
        words = str(size)
        yield text(
            x + place * step, y + high + 18, words, kind="faint", anchor="middle"
        )
    for _, some in itertools.groupby(rows, lambda row: row["engine"]):
        own = [*some]
        points = [
            (
                x + sizes.index(row["batch"]) * step,
                y + high * (1 - row["tokens_per_s"] / most),
            )
            for row in own
        ]
        yield line(points, kind=_colour(own[0]))
