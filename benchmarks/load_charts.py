"""The charts of conversations under load: distributions, and requests a second."""

import math
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.charts import legend
from benchmarks.svg import WIDTH, across, bar, curve, drawing, text, upright
from benchmarks.tables import LOADS, Row, engine_name, loaded

MEASURES = {
    "ttft_ms": "first tokens",
    "gap_ms": "gaps between tokens",
}
"""Whose distributions are drawn, a chart each."""
FORMS = {"": "prompts of all lengths", "-short": "prompts below 2,100 tokens"}
"""Of loads, by how their names end."""
AT_ONCE = "512 at once"
_TOP, _BAR = 78, 16
_FIELD = (380, 176)
"""Width and height of a load's drawing."""
_PLOT = (40, 46, 316, 96)
"""Left, top, width and height of the lines in it."""


def distribution(rows: Sequence[Row], measure: str) -> str:
    """By when which share has come; each load has a scale of its own."""
    title = f"Conversations with Llama-3-8B on an H200: {MEASURES[measure]}"
    height = _TOP + -(-len(LOADS) // 2) * _FIELD[1]
    return drawing(height, title, _distribution_parts(rows, measure, title))


def _head(title: str, told: str, other: Row) -> Iterator[str]:
    """Of both charts: the other engine's name is in a row of it."""
    yield text(0, 18, title, kind="title")
    yield text(0, 38, told, kind="faint")
    yield from legend(0, engine_name(other))


def _distribution_parts(rows: Sequence[Row], measure: str, title: str) -> Iterator[str]:
    pairs = {name: loaded(rows, name) for name in LOADS}
    told = "the share that has come by a time"
    yield from _head(title, told, pairs["conv-12"][1])
    for number, (name, pair) in enumerate(pairs.items()):
        x = number % 2 * _FIELD[0]
        y = _TOP + number // 2 * _FIELD[1]
        yield text(x, y + 24, LOADS[name])
        left, top, wide, high = _PLOT
        curves = [
            dict(zip(one["at"], one[measure], strict=True))
            for one in (row["distributions_ms"] for row in pair)
        ]
        yield from _lines(x + left, y + top, (wide, high), curves)


def _lines(
    x: float, y: float, size: tuple[float, float], curves: Sequence[Mapping[int, float]]
) -> Iterator[str]:
    """Two engines' times by percentile; of each nine more that have come, as high."""
    wide, high = size
    ticks = ticks_around([time for one in curves for time in one.values()])
    low, span = math.log(ticks[0]), math.log(ticks[-1] / ticks[0])
    first, last = (_nines(edge(curves[0])) for edge in (min, max))

    def at(milliseconds: float) -> float:
        return x + wide * (math.log(milliseconds) - low) / span

    def height(percentile: int) -> float:
        return y + high * (1 - (_nines(percentile) - first) / (last - first))

    for percentile in (50, 90, 99):
        yield across(height(percentile), x, x + wide)
        label = x - 6, height(percentile) + 4, f"p{percentile}"
        yield text(*label, kind="faint", anchor="end")
    for tick in ticks:
        yield upright(at(tick), y - 6, y + high + 6)
        words = f"{tick / 1000:g} s" if tick >= 1000 else f"{tick:g} ms"
        yield text(at(tick), y + high + 20, words, kind="faint", anchor="middle")
    for one, kind in reversed([*zip(curves, "ab", strict=True)]):
        points = [(at(time), height(percentile)) for percentile, time in one.items()]
        yield curve(points, kind=kind)


def _nines(percentile: int) -> float:
    """1 for 90, 2 for 99."""
    return -math.log10(1 - percentile / 100)


def ticks_around(values: Sequence[float]) -> list[float]:
    """1, 2 or 5 times powers of ten, from below the least to above the most."""
    first = math.floor(math.log10(min(values)))
    last = math.ceil(math.log10(max(values)))
    ticks = [n * 10.0**power for power in range(first, last + 1) for n in (1, 2, 5)]
    begin = max(n for n, tick in enumerate(ticks) if tick <= min(values))
    end = min(n for n, tick in enumerate(ticks) if tick >= max(values))
    return ticks[begin : max(end, begin + 1) + 1]


def throughput(rows: Sequence[Row]) -> str:
    """Requests a second over those asked for, of both engines."""
    title = "Conversations with Llama-3-8B on an H200: requests a second"
    step = 2 * _BAR + 14
    height = _TOP + len(LOADS) * step + len(FORMS) * 30
    return drawing(height, title, _throughput_parts(rows, title, step))


def _throughput_parts(rows: Sequence[Row], title: str, step: int) -> Iterator[str]:
    pairs = {name: loaded(rows, name) for name in LOADS}
    told = "from the first to the end of the last; a line stands where they are asked"
    yield from _head(title, told, pairs["conv-12"][1])
    rates = [one["requests_per_s"] for pair in pairs.values() for one in pair]
    y, most = _TOP, max(*rates, *filter(None, map(_asked, LOADS)))
    for ending, form in FORMS.items():
        yield text(0, y + 18, form)
        y += 30
        for name, pair in pairs.items():
            if name.endswith("-short") == bool(ending):
                yield from _rates(y, name, pair, most=most)
                y += step


def _rates(y: float, name: str, pair: Sequence[Row], *, most: float) -> Iterator[str]:
    """Of one load."""
    left, span = 120, WIDTH - 120 - 20
    words = LOADS[name].partition(",")[0]
    yield text(left - 10, y + _BAR + 4, words, anchor="end")
    for number, (row, kind) in enumerate(zip(pair, "ab", strict=True)):
        rate, top = row["requests_per_s"], y + number * (_BAR + 2)
        width = span * rate / most
        yield bar(left, top, width, _BAR, kind=kind)
        yield text(left + width - 6, top + 12.5, f"{rate:.1f}", kind="on", anchor="end")
    if (asked := _asked(name)) is not None:
        x = left + span * asked / most
        yield upright(x, y - 5, y + 2 * _BAR + 7)


def _asked(name: str) -> int | None:
    """Requests a second of a load; `None` of those that come at once."""
    return None if LOADS[name].startswith(AT_ONCE) else int(name.split("-")[1])
