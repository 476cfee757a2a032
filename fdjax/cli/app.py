"""The commands and what stands before them."""

from typing import Annotated

import typer

from fdjax.cli.bench import bench
from fdjax.cli.calibrate import calibrate
from fdjax.cli.chat import chat
from fdjax.cli.command import Command
from fdjax.cli.doctor import doctor
from fdjax.cli.generate import generate
from fdjax.cli.inspect import inspect
from fdjax.cli.serve import serve
from fdjax.cli.tune import tune
from fdjax.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"fdjax {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """LLM inference from JAX, on GPUs and on CPUs."""


app.command(cls=Command)(generate)
app.command(cls=Command)(chat)
app.command(cls=Command)(serve)
app.command(cls=Command)(inspect)
app.command(cls=Command)(doctor)
app.command(cls=Command)(calibrate)
app.command(cls=Command)(tune)
app.add_typer(bench, name="bench")
