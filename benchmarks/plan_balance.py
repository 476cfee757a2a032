"""How evenly plans share attention out: `python -m benchmarks.plan_balance TRACE`.

TRACE is a CSV file of requests with the columns `ContextTokens` and `GeneratedTokens`,
as Azure publishes them. Each draw is a batch of such requests that decode, each
somewhere in its output. What the busiest cluster of an H200 does is told in parts of
the mean over all, for each seed of the draws by itself: the lengths that a plan may
choose from were themselves chosen on draws of one seed, the number of rows, and only
the others say how even a plan is on draws that nobody has looked at.

No GPU is needed: a plan is made on the device by the rule of its definition, to the
same integers.
"""

import argparse
import csv
import json
import pathlib
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import RESULTS, provenance, write
from fdjax.cli.attention_plans import share
from fdjax.models import ModelConfig

MODEL = pathlib.Path("configs/models/llama3-8b.json")
ROWS = (64, 256)
PAGE_SIZE = 16
WANTED = 1.15
HELD_OUT = (1, 2, 3, 4)
"""Seeds of draws that no length of a plan's was chosen on."""
RESULT = RESULTS / "cpu" / "plan_balance.json"


def read_trace(path: pathlib.Path) -> list[tuple[int, int]]:
    """Tokens of each request's prompt and output."""
    with path.open(newline="") as file:
        return [
            (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        ]


def drawn(
    trace: Sequence[tuple[int, int]], rows: int, draw: random.Random
) -> tuple[int, ...]:
    """Lengths of rows that decode."""
    requests = draw.choices(trace, k=rows)
    return tuple(prompt + draw.randint(1, output) for prompt, output in requests)


def seeds_of(rows: int) -> tuple[int, ...]:
    """The seed that a plan's lengths were chosen on, and others."""
    return (rows, *HELD_OUT)


def balance(
    trace: Sequence[tuple[int, int]], rows: int, draws: int, *, seed: int
) -> dict[str, Any]:
    """What the busiest cluster does, over many draws.

    Args:
        trace: tokens of each request's prompt and output.
        rows: of each draw.
        draws: how many.
        seed: of all of them.
    """
    draw = random.Random(seed)
    model = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    attention = model.layers[0].attention
    busiest = [
        share(attention, drawn(trace, rows, draw), page_size=PAGE_SIZE).plan.busiest
        for _ in range(draws)
    ]
    return {
        "model": MODEL.stem,
        "rows": rows,
        "seed": seed,
        "held_out": seed != rows,
        "draws": draws,
        "mean": round(statistics.fmean(busiest), 4),
        "p99": round(statistics.quantiles(busiest, n=100, method="inclusive")[-1], 4),
        "worst": round(max(busiest), 4),
        f"above_{WANTED}": sum(one > WANTED for one in busiest),
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Results for a terminal."""
    names = list(results[0])
    lines = [
        names,
        ["---"] * len(names),
        *([str(r[n]) for n in names] for r in results),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(given: Sequence[str] | None = None) -> None:
    """Draws, prints a table, and keeps it.

    Args:
        given: of the command line; by default the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        help="of the draws; default: the number of rows, which the lengths of plans "
        f"were chosen on, and {', '.join(map(str, HELD_OUT))}",
    )
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    arguments = parser.parse_args(given)
    trace = read_trace(arguments.trace)
    results = [
        balance(trace, rows, arguments.draws, seed=seed)
        for rows in ROWS
        for seed in arguments.seeds or seeds_of(rows)
    ]
    print(table(results))
    write(arguments.out, [result | provenance() for result in results])


if __name__ == "__main__":
    main()
