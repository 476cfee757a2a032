"""`fdjax serve`: the OpenAI API, until a signal ends it."""

import contextlib
import faulthandler
import logging
import logging.config
import pathlib
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdjax.cli import engine_apart, interrupts
from fdjax.cli.choices import one_of
from fdjax.cli.connection_options import ConnectionOptions
from fdjax.cli.errors import FAILED, reported
from fdjax.cli.key_options import KeyOptions
from fdjax.cli.loading import sampling_defaults
from fdjax.cli.options import DebugOption, ModelArgument, ModelOptions, command
from fdjax.cli.request_options import RequestOptions
from fdjax.cli.served_model import (
    LogFormat,
    ServedOptions,
    begin_device,
    load_served,
)
from fdjax.cli.start_times import StartTimes
from fdjax.cli.step_options import StepOptions
from fdjax.errors import ConfigError, to_install
from fdjax.garbage import seldom_collected
from fdjax.serve.texts import MAX_BYTES_PER_TOKEN

if TYPE_CHECKING:
    from fdjax.serve.apart.launch import Launched
    from fdjax.serve.apart.loaded import LoadedApart
    from fdjax.serve.loading import Loaded

_LOGGER = logging.getLogger(__name__)
_SERVER = "Server"
LOST = 3
"""The status where requests were ended before they were done."""
# For the step of the engine that is under way at the end.
_CLOSING_S = 5.0

MetricsPrefix = Literal["fdjax", "vllm"]


@command
def serve(
    name: ModelArgument = None,
    *,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="What the API calls the model; may be repeated. MODEL by default.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    compilation_cache_dir: Annotated[
        pathlib.Path | None,
        typer.Option(
            file_okay=False,
            help="Where compiled programs are kept for the next start; fdjax's folder "
            "of the user's cache by default.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    compilation_cache: Annotated[
        bool,
        typer.Option(help="Keep compiled programs at all.", rich_help_panel=_SERVER),
    ] = True,
    max_bytes_per_token: Annotated[
        int,
        typer.Option(
            min=1,
            help="Of a text of --max-model-len tokens; longer ones are refused.",
            rich_help_panel=_SERVER,
        ),
    ] = MAX_BYTES_PER_TOKEN,
    metrics_prefix: Annotated[
        MetricsPrefix,
        typer.Option(
            help="Of the names of metrics; vllm suits dashboards made for that.",
            rich_help_panel=_SERVER,
            **one_of(MetricsPrefix),
        ),
    ] = "fdjax",
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="Of the log, on stderr.",
            rich_help_panel=_SERVER,
            **one_of(LogFormat),
        ),
    ] = "text",
    warm_up: Annotated[
        bool, typer.Option(help="Compile all programs first.", rich_help_panel=_SERVER)
    ] = True,
    engine_process: Annotated[
        bool | None,
        typer.Option(
            help="The engine has a process of its own, so that HTTP and texts do not "
            "keep it waiting. By default where there is a GPU.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    keys: KeyOptions,
    connections: ConnectionOptions,
    model: ModelOptions,
    requests: RequestOptions,
    steps: StepOptions,
    debug: DebugOption = False,
) -> None:
    """Serve a model over HTTP, in the words of OpenAI's API.

    The first Ctrl-C or SIGTERM lets requests that are under way end; the second stops
    at once.
    """
    with reported(debug=debug), contextlib.ExitStack() as stack:
        times = StartTimes()
        start = stack.enter_context(contextlib.ExitStack())
        start.enter_context(interrupts.kept())
        start.enter_context(seldom_collected())
        model, process = model.named(name), None
        if engine_process is None:
            engine_process = engine_apart.pays()
        if engine_process:
            process = engine_apart.launched(stack)
            times.lap("imports")  # the process itself says what its own take
        _check_extra()
        if process is None:
            begin_device(model)
        from fdjax.serve.http import logs, traces
        from fdjax.serve.http.listening import bound, only_here

        keyring = keys.keyring()
        if keyring.file is not None:  # read once more when the server listens
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        limits = connections.limits()
        sockets = stack.enter_context(bound(connections.host, connections.port))
        private = only_here(sockets) and not keyring.asks
        logging.config.dictConfig(logs.log_config(log_format))
        traces.start_export()
        options = ServedOptions(
            model,
            requests.beams() | requests.waiting() | steps.settings(),
            warm_up=warm_up,
            keeps_programs=compilation_cache,
            programs_folder=compilation_cache_dir,
            log_format=log_format,
            debug=debug,
        )
        loaded, counts = _loaded(process, options, times)
        from fdjax.serve.http.hosts import names_of
        from fdjax.serve.http.run import DrainingServer
        from fdjax.serve.http.wiring import application

        app, serving = application(
            loaded,
            names=served_model_name or [model.model],
            allowed_hosts=connections.allowed_hosts
            or names_of(connections.host, private=private),
            allowed_origins=connections.allowed_origins or (),
            metrics_prefix=metrics_prefix,
            stall_seconds=connections.stall_seconds,
            sampling=sampling_defaults(loaded.folder, model),
            limits=requests.limits(),
            keyring=keyring,
            max_bytes_per_token=max_bytes_per_token,
            tool_call_parser=requests.tool_call_parser,
            reasoning_parser=requests.reasoning_parser,
        )
        server = DrainingServer(
            app,
            sockets,
            drain_seconds=connections.drain_seconds,
            limits=limits,
            stall_exit_seconds=connections.stall_exit_seconds,
            on_stop=_end_in,
        )
        start.close()
        times.lap("server")
        _say_where_the_seconds_went(times, counts)
        try:
            server.run()
        finally:
            serving.close(seconds=_CLOSING_S)
        if serving.errored or server.gave_up:
            raise typer.Exit(FAILED)
        if server.num_lost:
            raise typer.Exit(LOST)


def _say_where_the_seconds_went(times: StartTimes, counts: Mapping[str, int]) -> None:
    seconds = {f"{name}_s": round(one, 1) for name, one in times.seconds.items()}
    fields = {**seconds, **counts}
    _LOGGER.info("ready after %.1f s", times.total, extra={"fields": fields})


def _loaded(
    process: "Launched | None", options: ServedOptions, times: StartTimes
) -> "tuple[Loaded | LoadedApart, Mapping[str, int]]":
    """The model, once it is ready, in a process if there is one; counts of programs."""
    if process is None:
        return load_served(options, times)
    return engine_apart.loaded(process, options, times)


def _end_in(seconds: float) -> None:
    """Ends the process if it has not ended by then, whatever holds it up."""
    faulthandler.dump_traceback_later(seconds + 2 * _CLOSING_S, exit=True)


def _check_extra() -> None:
    try:
        import fastapi
        import jinja2
        import llguidance
        import prometheus_client
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"fdjax serve needs {error.name}; {to_install('serve')}"
        ) from error
    del fastapi, jinja2, llguidance, prometheus_client, uvicorn
