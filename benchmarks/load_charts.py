"""The charts of conversations under load: distributions, and requests a second."""

import math
from collections.abc import Iterator, Sequence

from benchmarks.charts import legend
from benchmarks.svg import WIDTH, across, bar, drawing, line, text, upright
from benchmarks.tables import LOADS, PERCENTILES, Row, engine_name, loaded

MEASURES = {
    "ttft_ms": "first tokens",
    "gap_ms": "gaps between tokens",
}
"""Whose distributions are drawn, a chart each."""
SHARES = (0.5, 0.9, 0.99)
"""Those that have come by the times of `PERCENTILES`."""
FORMS = {"": "prompts of all lengths", "-short": "prompts below 2,100 tokens"}
"""Of loads, by how their names end."""
AT_ONCE = "512 at once"
_TOP, _BAR = 78, 16
_FIELD = (380, 176)
"""Width and height of a load's drawing."""
_PLOT = (40, 46, 316, 96)
"""Left, top, width and height of the lines in it."""


def distribution(rows: Sequence[Row], measure: str) -> str:
    """By when half, 90 % and 99 % have come; each load has a scale of its own."""
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
    told = "the share that has come by a time; points are measured, lines join them"
    yield from _head(title, told, pairs["conv-12"][1])
    for number, (name, pair) in enumerate(pairs.items()):
        x = number % 2 * _FIELD[0]
        y = _TOP + number // 2 * _FIELD[1]
        yield text(x, y + 24, LOADS[name])
        left, top, wide, high = _PLOT
        values = [one[measure] for one in pair]
        yield from _lines(x + left, y + top, (wide, high), values)


def _lines(
    x: float, y: float, size: tuple[float, float], values: Sequence[Sequence[float]]
) -> Iterator[str]:
    """Two engines' points; of each nine more that have come, the same height."""
    wide, high = size
    ticks = ticks_around([value for one in values for value in one])
    low, span = math.log(ticks[0]), math.log(ticks[-1] / ticks[0])

    def at(milliseconds: float) -> float:
        return x + wide * (math.log(milliseconds) - low) / span

    nines = [-math.log10(1 - share) for share in SHARES]
    heights = [y + high * (1 - (n - nines[0]) / (nines[-1] - nines[0])) for n in nines]
    for name, height in zip(PERCENTILES, heights, strict=True):
        yield across(height, x, x + wide)
        yield text(x - 6, height + 4, name, kind="faint", anchor="end")
    for tick in ticks:
        yield upright(at(tick), y - 6, y + high + 6)
        words = f"{tick / 1000:g} s" if tick >= 1000 else f"{tick:g} ms"
        yield text(at(tick), y + high + 20, words, kind="faint", anchor="middle")
    for one, kind in reversed([*zip(values, "ab", strict=True)]):
        points = zip(map(at, one), heights, strict=True)
        yield line([*points], kind=kind)


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
