"""Findings written as JSON: what ran, when, and every number."""

import datetime
import json
import pathlib
from collections.abc import Callable
from typing import Any

from fdjax.cli.writer import emit
from fdjax.version import __version__

_STDOUT = pathlib.Path("-")


def publish(
    benchmark: str,
    findings: dict[str, Any],
    *,
    path: pathlib.Path | None,
    show: Callable[[], None],
) -> None:
    """Writes findings as JSON where that is wanted, and shows them as tables.

    Args:
        benchmark: which.
        findings: the rest of the JSON object.
        path: of the file; `-` is stdout, and then no tables are shown.
        show: prints the tables.

    Raises:
        OSError: the file cannot be written.
    """
    now = datetime.datetime.now(tz=datetime.UTC)
    made_by = {"fdjax": __version__, "date": now.isoformat(timespec="seconds")}
    text = json.dumps({"benchmark": benchmark, **made_by, **findings}, indent=1) + "\n"
    if path == _STDOUT:
        emit(text)
        return
    if path is not None:
        path.write_text(text)
    show()
