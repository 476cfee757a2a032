"""`fdjax bench`: how fast a model or a server is, as users would notice."""

import typer

from fdjax.cli.bench.latency import latency
from fdjax.cli.bench.serve import serve
from fdjax.cli.bench.throughput import throughput
from fdjax.cli.command import Command

bench = typer.Typer(no_args_is_help=True)


@bench.callback()
def root() -> None:
    """Measure a model in this process, or a server."""


bench.command(cls=Command)(latency)
bench.command(cls=Command)(throughput)
bench.command(cls=Command)(serve)
