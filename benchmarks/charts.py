"""The charts of the docs, from rows of results."""

from collections.abc import Iterator, Sequence

from benchmarks.svg import WIDTH, bar, drawing, text, upright
from benchmarks.tables import (
    LOADS,
    PERCENTILES,
    Row,
    engine_name,
    loaded,
    paired,
    shape,
)

_LEFT, _RIGHT, _TOP = 110, 20, 78
_BAR = 16
_FIELD = (380, 176)
"""Width and height of one of four drawings in one."""
_LAYER = (8, 1024)
"""The step whose layer is drawn."""
_KINDS = (
    ("attention", "attention", "c"),
    ("norm", "norm", "d"),
    ("matmul", "GEMM", "a"),
    ("nvjet", "GEMM", "a"),
)


def decode(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    """How much of the read ceiling steps reach, beside another engine's."""
    pairs = [*paired(rows, peers)]
    step = 2 * _BAR + 16
    height = _TOP + step * len(pairs) + 24
    title = "A decode step of Llama-3-8B on an H200: share of the read ceiling"
    return drawing(height, title, _decode_parts(pairs, title, height, step))


def _decode_parts(
    pairs: Sequence[tuple[Row, Row]], title: str, height: int, step: int
) -> Iterator[str]:
    span = WIDTH - _LEFT - _RIGHT
    yield text(0, 18, title, kind="title")
    yield text(
        0, 38, "the time to read weights and KV once / the time taken", kind="faint"
    )
    yield from legend(_LEFT, pairs[0][1]["engine"])
    for percent in range(0, 101, 25):
        x = _LEFT + span * percent / 100
        yield upright(x, _TOP - 8, height - 22)
        anchor = "end" if percent == 100 else "middle"
        yield text(x, height - 6, f"{percent} %", kind="faint", anchor=anchor)
    for number, (row, peer) in enumerate(pairs):
        y = _TOP + step * number
        yield text(_LEFT - 10, y + _BAR + 4, shape(row), anchor="end")
        floor = row["fraction_of_ceiling"] * row["ms_per_step"]
        for place, (one, kind) in enumerate(((row, "a"), (peer, "b"))):
            top, share = y + place * (_BAR + 2), floor / one["ms_per_step"]
            yield bar(_LEFT, top, span * share, _BAR, kind=kind)
            told = f"{share:.0%}, {one['ms_per_step']:.2f} ms"
            yield text(
                _LEFT + span * share - 6, top + 12.5, told, kind="on", anchor="end"
            )


def load(rows: Sequence[Row]) -> str:
    """How long tokens are waited for under load, beside another engine.

    One field for each load and each measure, and each by its own scale.
    """
    title = "Conversations with Llama-3-8B on an H200: how long tokens take"
    return drawing(_TOP + len(LOADS) * _FIELD[1], title, _load_parts(rows, title))


def _load_parts(rows: Sequence[Row], title: str) -> Iterator[str]:
    yield text(0, 18, title, kind="title")
    told = "half, 90 % and 99 % of requests have it within this time; less is better"
    yield text(0, 38, told, kind="faint")
    for row_of_fields, name in enumerate(LOADS):
        pair = loaded(rows, name)
        if not row_of_fields:
            yield from legend(0, engine_name(pair[1]))
        for column, (measure, words) in enumerate(
            (("ttft_ms", "to the first token"), ("tpot_ms", "for each token after it"))
        ):
            x, y = column * _FIELD[0], _TOP + row_of_fields * _FIELD[1]
            yield text(x, y + 12, f"{LOADS[name]}: {words}")
            yield from _field(x, y + 22, [one[measure] for one in pair])


def _field(x: float, y: float, values: Sequence[Sequence[float]]) -> Iterator[str]:
    """Bars of two engines for each percentile; the longest has the field's width."""
    span = _FIELD[0] - 150
    longest = max(value for one in values for value in one)
    for place, name in enumerate(PERCENTILES):
        top = y + place * (2 * _BAR + 12)
        yield text(x + 30, top + _BAR + 4, name, kind="faint", anchor="end")
        for number, (one, kind) in enumerate(zip(values, "ab", strict=True)):
            width, at = span * one[place] / longest, top + number * (_BAR + 2)
            yield bar(x + 38, at, width, _BAR, kind=kind)
            told = _milliseconds(one[place])
            yield text(x + 44 + width, at + 12.5, told, kind="faint")


def _milliseconds(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.3g} ms"


def legend(x: float, engine: str) -> Iterator[str]:
    """The colours of fdjax and of another engine."""
    yield bar(x, 48, 10, 10, kind="a") + text(x + 16, 57, "fdjax")
    yield bar(x + 76, 48, 10, 10, kind="b") + text(x + 92, 57, engine)


def layer(rows: Sequence[Row]) -> str:
    """The kernels from one layer's attention to the next layer's, over time.

    The trace is of the last layer of a step and the first of the next, so the head and
    sampling stand between.
    """
    (row,) = (r for r in rows if (r["batch"], r["context"]) == _LAYER)
    kernels = [kernel for kernel in row["layer"] if _kind(kernel["kernel"])[0]]
    height = _TOP + 24 * len(kernels) + 30
    title = f"Kernels between two attentions, {shape(row)}, Llama-3-8B on an H200"
    return drawing(height, title, _layer_parts(row, kernels, title, height))


def _layer_parts(
    row: Row, kernels: Sequence[Row], title: str, height: int
) -> Iterator[str]:
    begin = min(kernel["start_us"] for kernel in kernels)
    end = max(kernel["end_us"] for kernel in kernels)
    scale = (WIDTH - _LEFT - _RIGHT) / (end - begin)
    told = "the last layer of a step, the head, and the first layer of the next; "
    yield text(0, 18, title, kind="title")
    yield text(
        0, 38, f"{told}most kernels start before the one above ends", kind="faint"
    )
    yield text(0, 56, f"commit {row['commit']}, {row['date']}", kind="faint")
    for tick in range(0, int(end) + 1, 50):
        x = _LEFT + (tick - begin) * scale
        yield upright(x, _TOP - 8, height - 26)
        yield text(x, height - 8, f"{tick} µs", kind="faint", anchor="middle")
    names = _names(kernels)
    for number, kernel in enumerate(kernels):
        y = _TOP + 24 * number
        took = kernel["end_us"] - kernel["start_us"]
        yield text(_LEFT - 10, y + 12.5, names[number], anchor="end")
        x = _LEFT + (kernel["start_us"] - begin) * scale
        yield bar(x, y, took * scale, _BAR, kind=_kind(kernel["kernel"])[1])
        # Where there is no room behind the bar, the words stand before it.
        behind = x + took * scale + 80 < WIDTH
        yield text(
            x + took * scale + 6 if behind else x - 6,
            y + 12.5,
            f"{took:.1f} µs",
            kind="faint",
            anchor="start" if behind else "end",
        )


def _kind(kernel: str) -> tuple[str, str]:
    """What a kernel is, and its colour; nothing of what samples."""
    for word, name, colour in _KINDS:
        if word in kernel:
            return name, colour
    return "", ""


def _names(kernels: Sequence[Row]) -> list[str]:
    """GEMMs by their place in the chain: it is always the same."""
    gemms = iter(("output", "gate and up", "down", "head", "QKV"))
    return [
        next(gemms) if name == "GEMM" else name
        for name, _ in (_kind(kernel["kernel"]) for kernel in kernels)
    ]
