"""`fdjax inspect`: what a model is made of, and where its memory would go."""

import dataclasses
import json
import os
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.cli.choices import one_of
from fdjax.cli.errors import reported
from fdjax.cli.given import given
from fdjax.cli.loading import configuration
from fdjax.cli.options import (
    SHIPPED,
    DebugOption,
    DtypeOption,
    JsonOption,
    MaxModelLenOption,
    MaxNumSeqsOption,
    MemoryFractionOption,
    RevisionOption,
    command,
)
from fdjax.cli.places import check_places
from fdjax.cli.planned_device import DeviceName, planning_for
from fdjax.cli.sizes import parse_bytes
from fdjax.cli.writer import emit
from fdjax.errors import MemoryBudgetError

if TYPE_CHECKING:
    from fdjax.cli.report import Report

# Parameters of what a plan of the memory is for.
_SIZES = ("budget", "max_model_len", "max_num_seqs", "memory_fraction")


@command
def inspect(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="A folder, a config.json, a hub id, or the model inside."),
    ] = SHIPPED,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Memory to plan for: 141GB, 80GiB or bytes; by default the share of "
            "this device's that --memory-fraction says."
        ),
    ] = None,
    device: Annotated[
        DeviceName,
        typer.Option(help="Plan for this device, here or not.", **one_of(DeviceName)),
    ] = "here",
    dtype: DtypeOption = "auto",
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: MaxNumSeqsOption = None,
    memory_fraction: MemoryFractionOption = 0.9,
    page_size: Annotated[
        int, typer.Option(min=1, help="Tokens of a page of the KV array.")
    ] = 16,
    revision: RevisionOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS",
            help="Instead: how attention over rows of these lengths is shared out on a "
            "GPU, as 63x512,32768; 2x64@1000 are two of 64 new tokens after 1,000.",
        ),
    ] = None,
    program: Annotated[
        bool,
        typer.Option(
            "--program",
            help="Instead: a step's instructions, and the buffers they work in.",
        ),
    ] = False,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(dir_okay=False, help="With --plan, a picture; needs matplotlib."),
    ] = None,
    json_report: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a model's parameters, its memory plan and the kernels that serve it.

    Reads the configuration only: no weights are needed, and nothing is allocated. What
    does not fit is shown too, with what would, and the status is 1.
    """
    with reported(debug=debug):
        if plan is not None:
            others = ("program", "json_report", "device", "dtype")
            _refuse(context, (*_SIZES, *others), "--plan shows attention on an H200")
            _show_plan(context, model, revision, plan, plot, page_size=page_size)
            return
        if program:
            _refuse(context, (*_SIZES, "plot"), "--program is for calls of any size")
            with planning_for(device):
                _show_program(
                    model, revision, dtype, page_size=page_size, as_json=json_report
                )
            return
        if plot is not None:
            raise typer.BadParameter("--plot draws a plan; say --plan, as 63x512,32768")
        if budget is not None:
            _refuse(context, ("memory_fraction",), "--budget is used whole")
        budget_bytes = None if budget is None else parse_bytes(budget)
        if device != "here" and budget_bytes is None:
            raise typer.BadParameter(f"--device {device} needs a --budget, as 80GB")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        with planning_for(device):
            report = _report(
                model,
                revision,
                budget_bytes,
                dtype=dtype,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                memory_fraction=memory_fraction,
                page_size=page_size,
            )
        if json_report:
            emit(json.dumps(dataclasses.asdict(report), indent=2) + "\n")
        else:
            from fdjax.cli.tables import show

            show(report)
        if report.problem is not None:
            raise MemoryBudgetError(report.problem)


def _refuse(context: typer.Context, names: tuple[str, ...], because: str) -> None:
    """Refuses the first option that is given, be it with its default.

    Args:
        context: of the command.
        names: parameters of it.
        because: why they are not read.

    Raises:
        BadParameter: one is.
    """
    for option in given(context, names):
        raise typer.BadParameter(f"{because}, and has no {option}; leave one out")


def _show_program(
    model: str,
    revision: str | None,
    dtype: str,
    *,
    page_size: int,
    as_json: bool,
) -> None:
    from fdjax.cli.programs import report_program, show_program
    from fdjax.serve.setup import Settings

    place = configuration(model, revision)
    settings = Settings.of(
        place, dtype=dtype, softmax="synchronised", page_size=page_size
    )
    report = report_program(settings)
    if as_json:
        emit(json.dumps(dataclasses.asdict(report), indent=2) + "\n")
    else:
        show_program(report)


def _show_plan(
    context: typer.Context,
    model: str,
    revision: str | None,
    rows: str,
    plot: pathlib.Path | None,
    *,
    page_size: int,
) -> None:
    from fdjax.cli.attention_plans import parse_rows
    from fdjax.cli.layer_plans import plans
    from fdjax.cli.plan_pictures import draw
    from fdjax.cli.tables import pairs, print_all
    from fdjax.serve.setup import Settings

    lengths, prompts = parse_rows(rows)
    if not lengths:  # tiles of prompts are the same whatever a page has
        _refuse(context, ("page_size",), "--plan has prompts alone")
    check_places(None, plot)
    config = Settings.of(configuration(model, revision), softmax="synchronised").config
    found = plans(config, lengths, prompts, page_size=page_size)
    print_all(*(pairs(one.title, one.lines()) for one in found))
    if plot is not None:
        draw([one.panel() for one in found], plot)


def _report(
    model: str, revision: str | None, budget_bytes: int | None, **settings: Any
) -> "Report":
    from fdjax import device
    from fdjax.cli.report import report_of
    from fdjax.models.calibration import unified_for
    from fdjax.serve.setup import Settings

    device.claim_memory(settings["memory_fraction"])
    place = configuration(model, revision)
    # Calibrations go by the model's name, which the place no longer tells.
    unified = unified_for("auto", model, place)
    settings["softmax"] = unified or "synchronised"
    return report_of(Settings.of(place, **settings), model, budget_bytes)
