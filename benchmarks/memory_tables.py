"""The tables of what memory has room for, as Markdown, from rows of results."""

from collections.abc import Mapping, Sequence

from benchmarks.tables import NOTHING, Row, markdown, provenance


def cases(found: Sequence[Row]) -> str:
    """What has run: its tokens, times, and the device's peak beside the plan.

    And what is arithmetic alone, as the longest prompts of one call are until they run.
    """
    if not found:
        return NOTHING
    ran = [row for row in found if row.get("planned_bytes")]
    header = (
        "case", "tokens", "prompt", "first token, s", "ms/token", "planned, GB",
        "peak beside the plan", "commit",
    )  # fmt: skip
    cells = (
        (
            row["case"],
            f"{row['tokens']:,}",
            _number(row["prompt_tokens"], ","),
            _number(row["ttft_s"], ".1f"),
            _number(row["ms_per_token"], ".1f"),
            f"{row['planned_bytes'] / 1e9:.2f}",
            _number(row["peak_over_plan"], "+.2%"),
            row["commit"],
        )
        for row in ran
    )
    planned = "; ".join(_planned(row) for row in found if row not in ran)
    told = f" By arithmetic alone: {planned}." if planned else ""
    return f"{markdown(header, cells)}\n\n{provenance(ran)}{told}"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _planned(row: Row) -> str:
    """A prompt, and what it may grow to."""
    prompt, last = row["prompt_tokens"], row["tokens"]
    grows = f", {last:,} at the end" if last > prompt else ""
    return f"{row['case']} {prompt:,}{grows} ({row['commit']})"


def rows(found: Sequence[Row]) -> str:
    """Tokens a second by rows, for each way of memory; and of all rows that fit it.

    Memory is compared where prompts are cut alike: lent in chunks and apart in chunks,
    lent in one call and apart in one call.
    """
    if not found:
        return NOTHING
    ways: dict[str, dict[int, Row]] = {}
    for row in found:
        ways.setdefault(row["way"], {})[row["batch"]] = row
    # Batches that all have; each has that of its own rows besides.
    batches = sorted(set[int].intersection(*(set(each) for each in ways.values())))
    whole = {way: _of_all_rows(each) for way, each in ways.items()}
    header = ("tokens/s", *map(str, batches), "rows that fit", "tokens/s of these")
    cells = (
        (
            name.replace("_", " "),
            *(_rate(each[batch]) for batch in batches),
            str(whole[name]["rows"]),
            _rate(whole[name]),
        )
        for name, each in ways.items()
    )
    spread = max(row["spread"] for row in found if row["spread"] is not None)
    chunks = _gain(ways["chunks_lent"], ways["chunks_apart"])
    call = _gain(ways["one_call_lent"], ways["one_call_apart"])
    told = (
        f"Lent for apart, and prompts cut alike: in chunks {chunks}; in one call "
        f"{call}. Tokens are those a second of the fastest batch that fits. OOM is by "
        f"the plan, and was not run. Spreads are {spread:.1%} at most."
    )
    return f"{markdown(header, cells)}\n\n{told}{_turns(found)} {provenance(found)}"


def _gain(lent: Mapping[int, Row], apart: Mapping[int, Row]) -> str:
    """How many more rows fit, and what they bring."""
    more, few = (_of_all_rows(each)["rows"] for each in (lent, apart))
    gain = _fastest(lent) / _fastest(apart)
    rows = f"{more} rows for {few}, {more / few:.2f} times"
    return f"{rows}, and {gain:.2f} times the tokens"


def _turns(found: Sequence[Row]) -> str:
    """How long steps took by turns, of batches that fit both ways."""
    both = [row for row in found if "of_apart" in row]
    if not both:
        return ""
    ratios = [row["of_apart"] for row in both]
    return (
        f" In turns, {both[0]['repeats']} of each, a step took {min(ratios):.3f} to "
        f"{max(ratios):.3f} times as long where it is lent as apart, by the medians of "
        "a batch."
    )


def _of_all_rows(found: Mapping[int, Row]) -> Row:
    """Of one way's results by batch, that of as many rows as fit."""
    return next(row for batch, row in found.items() if batch == row["rows"])


def _fastest(found: Mapping[int, Row]) -> float:
    """Tokens a second of the best batch; more rows are not always faster."""
    return max(row["tokens_per_s"] or 0.0 for row in found.values())


def _rate(row: Row) -> str:
    rate = row["tokens_per_s"]
    return "OOM" if rate is None else f"{rate:,.0f}"
