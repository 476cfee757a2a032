"""The process that has the engine of `fdjax serve`, which starts it."""

import asyncio
import logging.config
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from fdjax.cli.errors import options_of, reported
from fdjax.cli.served_model import ServedOptions, begin_device, load_served
from fdjax.cli.start_times import StartTimes
from fdjax.garbage import seldom_collected
from fdjax.serve.apart.launch import ignore_signals
from fdjax.serve.apart.line import Line

if TYPE_CHECKING:
    from fdjax.serve.apart.host import Served


def run(begin: "Callable[[dict[str, Any]], Callable[[], Served]]") -> None:
    """Serves the front at the other end of the socket that the command line names.

    Args:
        begin: of the options that the front sends, what loads the model; what is needed
            for serving it is imported in between.
    """
    ignore_signals()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # or it would outlive this process in a compiler
    import_module("jax")  # a second, in which the front looks at its options
    try:
        load = begin(Line(connection).first().fields["options"])
    except EOFError:  # the front has gone already
        return
    from fdjax.serve.apart.host import host

    try:
        asyncio.run(host(connection, load))
    except typer.Exit as end:
        sys.exit(end.exit_code)


def _begin(told: dict[str, Any]) -> "Callable[[], Served]":
    options = ServedOptions.heard(told)
    begin_device(options.model)
    return partial(_load, options)


def _load(options: ServedOptions) -> "Served":
    from fdjax.serve.apart.host import Served
    from fdjax.serve.http.logs import log_config

    times = StartTimes()
    with (
        options_of(options.option_names),
        reported(debug=options.debug),
        seldom_collected(),
    ):
        logging.config.dictConfig(log_config(options.log_format))
        loaded, counts = load_served(options, times)
    facts = {
        "folder": str(loaded.folder.absolute()),
        "vocab_size": loaded.vocab_size,
        "max_model_len": loaded.max_model_len,
        "seconds": times.seconds,
        "counts": counts,
    }
    return Served(loaded.engine, loaded.tokenizer, loaded.grammars, facts)


if __name__ == "__main__":
    run(_begin)
