"""The chart of FlashDecoding++Next's Fig. 19: longest sequences in 80 GiB."""

from collections.abc import Iterator, Sequence

from benchmarks.svg import WIDTH, bar, drawing, text, upright
from benchmarks.tables import Row

WAYS = {
    "separate": "one call, own memory",
    "arena": "one call, in the arena",
    "chunked": "in chunks",
}
# Their figure, on an 80 GB GPU, tokens; its arena is our chunks' and theirs alike.
PAPER = {
    ("llama3-8b", "separate"): 320_000,
    ("llama3-8b", "chunked"): 502_000,
    ("qwen1.5-7b", "separate"): 110_000,
    ("qwen1.5-7b", "chunked"): 128_000,
}
BUDGET = "80GiB"
_LEFT, _TOP, _STEP = 250, 62, 26
_LETTER = 8  # at most, in the mean


def curves(rows: Sequence[Row]) -> list[tuple[str, str, Row]]:
    """Model, way and row; what has run stands for what is planned."""
    by_case = {row["case"]: row for row in rows}
    found: list[tuple[str, str, Row]] = []
    for model in dict.fromkeys(model for model, _ in PAPER):
        for way in WAYS:
            planned = by_case.get(f"{model}-{BUDGET}-{way}")
            # Which has few tokens of output; keys and values of more have room.
            run = by_case.get(f"{model}-{BUDGET}-one-call-{way}")
            if run is not None and planned is not None:
                row = {**run, "tokens": max(run["tokens"], planned["tokens"])}
            else:
                row = planned
            if way == "chunked":
                row = by_case.get(f"{model}-{BUDGET}", planned)
            if row is not None:
                found.append((model, way, row))
    return found


def chart(rows: Sequence[Row], device_name: str) -> str:
    """Bars of the final length, and on them those of the prompt.

    Raises:
        ValueError: there is no row to draw.
    """
    drawn = curves(rows)
    if not drawn:
        raise ValueError("no curve is among the results; run the case curves first")
    title = f"Longest sequence in 80 GiB, one row, 16 bits ({device_name})"
    return drawing(_TOP + _STEP * len(drawn) + 8, title, _parts(drawn, title))


def _parts(drawn: Sequence[tuple[str, str, Row]], title: str) -> Iterator[str]:
    span = WIDTH - _LEFT - 10
    most = max(row["tokens"] for _, _, row in drawn)
    yield text(0, 18, title, kind="title")
    yield text(_LEFT + 220, 41, "by arithmetic, but for those run", kind="faint")
    yield bar(_LEFT, 32, 10, 10, kind="a") + text(_LEFT + 16, 41, "prompt")
    yield bar(_LEFT + 90, 32, 10, 10, kind="b") + text(_LEFT + 106, 41, "with output")
    yield upright(_LEFT, _TOP - 8, _TOP + _STEP * len(drawn))
    for place, (model, way, row) in enumerate(drawn):
        y = _TOP + _STEP * place
        yield text(_LEFT - 10, y + 13, f"{model}, {WAYS[way]}", anchor="end")
        width, told = span * row["tokens"] / most, _told(model, way, row)
        yield bar(_LEFT, y, width, 18, kind="b")
        yield bar(_LEFT, y, span * row["prompt_tokens"] / most, 18, kind="a")
        fits = len(told) * _LETTER < width
        x, kind = (_LEFT, "on") if fits else (_LEFT + width, "faint")
        yield text(x + 6, y + 13, told, kind=kind)


def _told(model: str, way: str, row: Row) -> str:
    prompt, tokens = row["prompt_tokens"], row["tokens"]
    words = f"{tokens:,}" if prompt == tokens else f"{prompt:,}; {tokens:,}"
    words += ", run" if row.get("ttft_s") else ""
    paper = PAPER.get((model, way))
    return words if paper is None else f"{words} (the paper: {paper:,})"
