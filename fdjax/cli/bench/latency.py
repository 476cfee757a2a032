"""`fdjax bench latency`: one batch at a time."""

import dataclasses
import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from fdjax.cli.bench.options import ReportOption, RunOptions
from fdjax.cli.errors import reported
from fdjax.cli.options import DebugOption, ModelOptions, command
from fdjax.cli.places import check_places
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from fdjax.cli.bench.distribution import Spread
    from fdjax.cli.bench.offline import Run


@command
def latency(
    *,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts that run together.")
    ] = 1,
    run: RunOptions,
    model: ModelOptions,
    json_file: ReportOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure how long one batch takes: whole, to the first token, and per token.

    Each run has random prompts of its own. Shown are the median of the runs and their
    spread, (largest - smallest) / median. Of first tokens and of the time per token
    after them, a run counts the median of its prompts.
    """
    with reported(debug=debug):
        from fdjax.cli.bench.offline import measured
        from fdjax.cli.bench.report import publish
        from fdjax.cli.bench.run_tables import show_latency

        check_places(json_file, None)
        found = measured(_fitting(model, batch_size), run, num_prompts=batch_size)
        times = _times(found.runs)
        findings = {
            **found.conditions,
            "batch_size": batch_size,
            **dataclasses.asdict(run),
            **{name: spread and vars(spread) for name, spread in times.items()},
        }
        sizes = f"{batch_size} x {run.input_len} in, {run.output_len} out"
        publish(
            "latency",
            findings,
            path=json_file,
            show=lambda: show_latency(f"{model.model}: {sizes}", times),
        )


def _fitting(model: ModelOptions, batch_size: int) -> ModelOptions:
    """Rows for the whole batch: in turns it would not be one."""
    rows = model.max_num_seqs or batch_size
    if rows < batch_size:
        raise ConfigError(
            f"--batch-size is {batch_size}, but --max-num-seqs {rows}; raise "
            "--max-num-seqs, or leave it out"
        )
    return dataclasses.replace(model, max_num_seqs=rows)


def _times(runs: "list[Run]") -> "dict[str, Spread | None]":
    from fdjax.cli.bench.distribution import Spread

    firsts = [statistics.median(run.first_token_s) for run in runs]
    steps = [statistics.median(run.per_token_s) for run in runs if run.per_token_s]
    return {
        "total_s": Spread.of([run.total_s for run in runs]),
        "first_token_s": Spread.of(firsts),
        "per_token_s": Spread.of(steps) if steps else None,
    }
