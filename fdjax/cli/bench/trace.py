"""Traces of arrivals: CSV files with the columns of Azure's LLM inference traces."""

import csv
import datetime
import pathlib
from collections.abc import Mapping

from fdjax.cli.bench.arrivals import Arrival
from fdjax.errors import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: pathlib.Path, *, count: int | None = None) -> list[Arrival]:
    """Requests of a trace, the first of them at 0.

    Args:
        path: a CSV file with a header; other columns are ignored.
        count: how many rows to read; all by default.

    Raises:
        ConfigError: a column is missing, a row cannot be read or is earlier than the
            row before, or there are fewer rows than asked for.
        OSError: the file cannot be read.
    """
    times: list[datetime.datetime] = []
    arrivals: list[Arrival] = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise ConfigError(
                f"{path} has no column {missing[0]}; a trace has the columns "
                f"{', '.join(COLUMNS)}"
            )
        for row in rows:
            if len(arrivals) == count:
                break
            where = f"{path}, line {rows.line_num}"
            times.append(_time(row, where))
            arrivals.append(_arrival(row, times, where))
    if not arrivals or (count is not None and len(arrivals) < count):
        raise ConfigError(
            f"{path} has {len(arrivals)} rows, but {count or 1} are needed; ask for "
            "fewer, or take a longer trace"
        )
    return arrivals


def _arrival(
    row: Mapping[str, str | None], times: list[datetime.datetime], where: str
) -> Arrival:
    if len(times) > 1 and times[-1] < times[-2]:
        raise ConfigError(
            f"{where}: TIMESTAMP {times[-1]} is earlier than {times[-2]} of the row "
            "before; sort the trace"
        )
    return Arrival(
        at_s=(times[-1] - times[0]).total_seconds(),
        input_tokens=_tokens(row, "ContextTokens", where),
        output_tokens=_tokens(row, "GeneratedTokens", where),
    )


def _time(row: Mapping[str, str | None], where: str) -> datetime.datetime:
    text = row["TIMESTAMP"] or ""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{where}: TIMESTAMP is {text!r}; write it as 2023-11-16 18:15:46.68"
        ) from None
    # Only differences count, and zones cannot be mixed with times that have none.
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def _tokens(row: Mapping[str, str | None], name: str, where: str) -> int:
    text = row[name] or ""
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"{where}: {name} is {text!r}; write a number from 1")
    return int(text)
