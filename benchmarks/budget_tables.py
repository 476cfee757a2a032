"""The table of budgets and orders of prompts, as Markdown, from rows of results."""

import re
from collections.abc import Sequence

from benchmarks.tables import LOADS, NOTHING, Row, markdown, provenance


def budgets(rows: Sequence[Row]) -> str:
    """A line for each load, budget and order."""
    if not rows:
        return NOTHING
    header = (
        "load", "budget", "order", "p50 / p90 / p99 of the first token, ms",
        "of prompts below 2,100 tokens", "of longer ones", "each after it, ms",
        "gaps, ms", "requests/s", "commit",
    )  # fmt: skip
    measures = ("ttft_ms", "ttft_short_ms", "ttft_long_ms", "tpot_ms", "gap_ms")
    cells = (
        (
            _name(row["load"]),
            f"{row['budget']:,}",
            row["order"],
            *(_three(row[name]) for name in measures),
            f"{row['requests_per_s']:.1f}",
            row["commit"],
        )
        for row in sorted(
            rows, key=lambda row: (row["load"], row["budget"], row["order"])
        )
    )
    return f"{markdown(header, cells)}\n\n{provenance(rows)}"


def _name(load: str) -> str:
    """In words, where it has them."""
    if found := re.fullmatch(r"conv-(\d+)-long", load):
        return f"{found[1]} a second, long"
    return LOADS.get(load, load)


def _three(percentiles: Sequence[float] | None) -> str:
    """Percentiles; those of nothing have no numbers."""
    if percentiles is None:
        return "none"
    return " / ".join(f"{value:,.{1 if value < 100 else 0}f}" for value in percentiles)
