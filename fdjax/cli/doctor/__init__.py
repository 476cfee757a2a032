"""`fdjax doctor`: what there is here, what serves, and what to do next."""

import dataclasses
import json
import os
from typing import Annotated

import typer

from fdjax.cli.errors import FAILED, reported
from fdjax.cli.options import SHIPPED, DebugOption, JsonOption, command
from fdjax.cli.writer import emit


@command
def doctor(
    model: Annotated[
        str,
        typer.Argument(help="Whose operations: a folder, a config.json or a hub id."),
    ] = SHIPPED,
    json_report: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what fdjax finds on this machine, and the one thing to do next.

    GPU, driver, what the extension was built for, what serves each operation and why
    nothing faster does, extras, caches. Ends with status 1 where something is broken.
    """
    with reported(debug=debug):
        # It only looks: the GPU's memory is for whoever runs beside it.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        from fdjax.cli.doctor.findings import find
        from fdjax.cli.doctor.remedy import next_step

        findings = find(model)
        step = next_step(findings)
        if json_report:
            report = dataclasses.asdict(findings) | {"next": dataclasses.asdict(step)}
            emit(json.dumps(report, indent=2) + "\n")
        else:
            from fdjax.cli.doctor.tables import show

            show(findings, step)
    if step.broken:
        raise typer.Exit(FAILED)
