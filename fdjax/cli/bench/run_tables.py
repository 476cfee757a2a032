"""What runs in this process took, as tables."""

from collections.abc import Mapping

from rich.table import Table

from fdjax.cli.bench.distribution import Spread
from fdjax.cli.tables import print_all, titled

_LATENCY = {
    "total_s": "whole batch, ms",
    "first_token_s": "first token, ms",
    "per_token_s": "each token after it, ms",
}
_THROUGHPUT = {
    "total_s": "all requests, s",
    "requests_per_s": "requests / s",
    "output_tokens_per_s": "output tokens / s",
    "total_tokens_per_s": "all tokens / s",
}


def show_latency(title: str, times: Mapping[str, Spread | None]) -> None:
    """Writes times in seconds to stdout, as milliseconds.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    print_all(_table(title, _LATENCY, times, factor=1e3))


def show_throughput(title: str, rates: Mapping[str, Spread]) -> None:
    """Writes rates to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    print_all(_table(title, _THROUGHPUT, rates, factor=1.0))


def _table(
    title: str,
    names: Mapping[str, str],
    values: Mapping[str, Spread | None],
    *,
    factor: float,
) -> Table:
    table = titled(f"{title}\n")
    table.add_column("")
    for column in ("median", "smallest", "largest", "spread", "runs"):
        table.add_column(column, justify="right")
    for name, shown in names.items():
        table.add_row(shown, *_cells(values[name], factor))
    return table


def _cells(measured: Spread | None, factor: float) -> list[str]:
    if measured is None:
        return ["-"] * 5
    one = measured
    numbers = [factor * value for value in (one.median, one.smallest, one.largest)]
    return [
        *(f"{number:,.2f}" for number in numbers),
        f"{one.spread:.1%}",
        str(len(one.values)),
    ]
