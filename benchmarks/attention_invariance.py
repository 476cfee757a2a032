"""What `op.batch_invariant()` costs attention of one layer on a GPU.

`python -m benchmarks.attention_invariance` measures the cases of `benchmarks.attention`
with it and without, in turns.
"""

import argparse
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import needs, results
from benchmarks.attention import prefill_program
from benchmarks.attention_cases import CASES, Rows, draw
from benchmarks.decode_attention import SCHEMES, microseconds, program
from fdjax.kernels import op
from fdjax.kernels.decode_attention import DecodeAttention

NAMES = [case.name for case in CASES if case.kv_heads == 8]
TURNS = 3


def invariant(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, where the bits of a row are its own."""

    def inside(call: Any) -> Any:
        with op.batch_invariant():
            return run(call)

    return inside


def measure(rows: Rows) -> dict[str, Any]:
    """One row of the results."""
    call = draw(rows)
    decodes = isinstance(call, DecodeAttention)
    run = program(SCHEMES["synchronised"]) if decodes else prefill_program()
    ways = {"us": run, "invariant_us": invariant(run)}
    repeats: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            calls = 200 if decodes else 16
            repeats[name] += microseconds(way, call, calls=calls)[1:]
    us = {name: statistics.median(times) for name, times in repeats.items()}
    spreads = [(max(r) - min(r)) / us[name] for name, r in repeats.items()]
    return {
        "case": rows.name,
        **{name: round(value, 2) for name, value in us.items()},
        "ratio": round(us["invariant_us"] / us["us"], 3),
        "spread": round(max(spreads), 4),
        **results.provenance(),
    }


def main() -> None:
    """Measures, and adds to `attention_invariance.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--cases", help="names, with commas between; most by default")
    options = parser.parse_args()
    needs.gpu()
    folder = results.RESULTS / results.device_slug()
    out = options.out or folder / "attention_invariance.json"
    chosen = options.cases.split(",") if options.cases else NAMES
    for case in CASES:
        if case.name in chosen:
            row = measure(case)
            print(row, flush=True)
            results.keep(out, [row], named=["case"])


if __name__ == "__main__":
    main()
