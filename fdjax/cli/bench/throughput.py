"""`fdjax bench throughput`: many requests handed over at once."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from fdjax.cli.bench.options import ReportOption, RunOptions
from fdjax.cli.errors import reported
from fdjax.cli.options import DebugOption, ModelOptions, command
from fdjax.cli.places import check_places

if TYPE_CHECKING:
    from fdjax.cli.bench.distribution import Spread
    from fdjax.cli.bench.offline import Run


@command
def throughput(
    *,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Requests that are handed over at once.")
    ] = 64,
    run: RunOptions,
    model: ModelOptions,
    json_file: ReportOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure requests and tokens a second, of many requests handed over at once.

    Each run has random prompts of its own. Shown are the median of the runs and their
    spread, (largest - smallest) / median.
    """
    with reported(debug=debug):
        from fdjax.cli.bench.offline import measured
        from fdjax.cli.bench.report import publish
        from fdjax.cli.bench.run_tables import show_throughput

        check_places(json_file, None)
        found = measured(model, run, num_prompts=num_prompts)
        rates = _rates(found.runs, run, num_prompts)
        findings = {
            **found.conditions,
            "num_prompts": num_prompts,
            **dataclasses.asdict(run),
            **{name: vars(spread) for name, spread in rates.items()},
        }
        sizes = f"{num_prompts} x {run.input_len} in, {run.output_len} out"
        publish(
            "throughput",
            findings,
            path=json_file,
            show=lambda: show_throughput(f"{model.model}: {sizes}", rates),
        )


def _rates(
    runs: "list[Run]", options: RunOptions, num_prompts: int
) -> "dict[str, Spread]":
    from fdjax.cli.bench.distribution import Spread

    out = num_prompts * options.output_len
    amounts = {
        "requests_per_s": num_prompts,
        "output_tokens_per_s": out,
        "total_tokens_per_s": out + num_prompts * options.input_len,
    }
    rates = {
        name: Spread.of([amount / run.total_s for run in runs])
        for name, amount in amounts.items()
    }
    return {"total_s": Spread.of([run.total_s for run in runs]), **rates}
