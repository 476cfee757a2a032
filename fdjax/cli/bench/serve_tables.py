"""`fdjax bench serve`'s findings as tables."""

from rich.table import Table
from rich.text import Text

from fdjax.cli.bench.distribution import Distribution
from fdjax.cli.bench.summary import Summary
from fdjax.cli.tables import pairs, print_all, titled

TITLES = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end to end",
}


def show(summary: Summary, title: str) -> None:
    """Writes a summary to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    tables = [_counts(summary, title), _latencies(summary)]
    print_all(*tables, *([_failures(summary)] if summary.failures else []))


def _counts(summary: Summary, title: str) -> Table:
    failed = summary.requests - summary.completed
    short = f", {summary.short} with fewer tokens than asked for"
    lines = {
        "requests": f"{summary.requests}: {summary.completed} completed"
        f"{short if summary.short else ''}, {failed} failed",
        "duration": f"{summary.duration_s:.2f} s",
        "input": f"{summary.input_tokens:,} tokens",
        "output": _tokens(summary.output_tokens),
        "requests / s": f"{summary.requests_per_s:.2f}",
        "output tokens / s": _speed(summary.output_tokens_per_s),
        "all tokens / s": _speed(summary.total_tokens_per_s),
    }
    good = summary.goodput
    if good is not None:
        limits = ", ".join(f"{n} {ms:g} ms" for n, ms in good.limits_ms.items())
        lines["goodput"] = (
            f"{good.requests_per_s:.2f} requests / s, {good.share:.1%} of all, within "
            f"{limits}"
        )
    return pairs(f"{title}\n", lines)


def _latencies(summary: Summary) -> Table:
    table = titled("\nMilliseconds")
    table.add_column("")
    for name in ("mean", "p50", "p90", "p99", "largest", "values"):
        table.add_column(name, justify="right")
    for name, title in TITLES.items():
        table.add_row(title, *_cells(summary.latency_ms[name]))
    table.add_row("sent late by", *_cells(summary.late_ms))
    table.add_row("lag of this client", *_cells(summary.lag_ms))
    return table


def _cells(measured: Distribution | None) -> list[str]:
    if measured is None:
        return ["-"] * 6
    one = measured
    shown = [one.mean, one.p50, one.p90, one.p99, one.largest]
    return [*(f"{value:,.2f}" for value in shown), f"{one.count:,}"]


def _failures(summary: Summary) -> Table:
    table = titled("\nFailed requests")
    table.add_column("number", justify="right")
    table.add_column("failure")
    table.add_column("of the first", overflow="fold")
    for failure in summary.failures:
        table.add_row(str(failure.count), Text(failure.kind), Text(failure.first))
    return table


def _tokens(count: int | None) -> str:
    return "not counted by the server" if count is None else f"{count:,} tokens"


def _speed(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"
