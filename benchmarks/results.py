"""Results as JSON in the repository: what ran, on what, and when."""

import datetime
import json
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fdjax import device
from fdjax.kernels.matmul.timing import READ_CEILING_GB_S

ROOT = pathlib.Path(__file__).resolve().parent
RESULTS = ROOT / "results"


def device_slug() -> str:
    """The device's name as a folder: "nvidia-h200", "cpu"; a described one's too."""
    return device.kind().lower().replace(" ", "-")


def commit() -> str:
    """The commit measured: `FDJAX_COMMIT`, or the checkout's own."""
    stated = os.environ.get("FDJAX_COMMIT")
    if stated:
        return stated
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def share_of_ceiling(gb_s: float) -> dict[str, float]:
    """What a result says of the read ceiling, where it is known: on an H200."""
    if "H200" not in jax.devices()[0].device_kind:
        return {}
    return {"fraction_of_ceiling": round(gb_s / READ_CEILING_GB_S, 4)}


def provenance() -> dict[str, str]:
    """What every result records beside its numbers."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return {"jax": jax.__version__, "commit": commit(), "date": today.isoformat()}


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a list of results, one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    path.write_text(f"[\n{lines}\n]\n")


def keep(
    path: pathlib.Path, rows: Sequence[Mapping[str, Any]], *, named: Sequence[str]
) -> None:
    """Adds results to a file, in place of those that it has of the same.

    Args:
        path: of the file, which need not be there.
        rows: the new results.
        named: fields in which results of the same agree; some may have none of them.
    """
    new = {tuple(row.get(name) for name in named) for row in rows}
    there = json.loads(path.read_text()) if path.exists() else []
    kept = [row for row in there if tuple(row.get(name) for name in named) not in new]
    write(path, [*kept, *rows])
