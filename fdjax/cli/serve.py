"""`fdjax serve`: the OpenAI API, until a signal ends it."""

import contextlib
import faulthandler
import gc
import logging
import logging.config
import pathlib
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdjax.cli.choices import one_of
from fdjax.cli.connection_options import ConnectionOptions
from fdjax.cli.errors import FAILED, reported
from fdjax.cli.key_options import KeyOptions
from fdjax.cli.loading import keep_programs, load, sampling_defaults
from fdjax.cli.options import DebugOption, ModelArgument, ModelOptions, command
from fdjax.cli.request_options import RequestOptions
from fdjax.cli.start_times import StartTimes
from fdjax.cli.step_options import StepOptions
from fdjax.errors import ConfigError, to_install
from fdjax.garbage import seldom_collected
from fdjax.serve.texts import MAX_BYTES_PER_TOKEN

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM

_LOGGER = logging.getLogger(__name__)
_SERVER = "Server"
LOST = 3
"""The status where requests were ended before they were done."""
# For the step of the engine that is under way at the end.
_CLOSING_S = 5.0

LogFormat = Literal["text", "json"]
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
        start.enter_context(seldom_collected())
        model = model.named(name)
        _check_extra()
        _begin_device(model)
        from fdjax import device
        from fdjax.serve.http import logs, traces
        from fdjax.serve.http.hosts import names_of
        from fdjax.serve.http.listening import bound, only_here
        from fdjax.serve.http.run import DrainingServer
        from fdjax.serve.http.wiring import application

        keyring = keys.keyring()
        if keyring.file is not None:  # read once more when the server listens
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        limits = connections.limits()
        sockets = stack.enter_context(bound(connections.host, connections.port))
        private = only_here(sockets) and not keyring.asks
        logging.config.dictConfig(logs.log_config(log_format))
        traces.start_export()
        if compilation_cache:
            keep_programs(compilation_cache_dir)
        times.lap("imports")
        device.platform()
        times.lap("device")
        llm = load(
            model,
            **requests.beams(),
            **requests.waiting(),
            **steps.settings(),
        )
        times.add("weights", llm.loaded.weights_s)
        times.lap("engine")
        _LOGGER.info("%s", llm.engine.limits)
        sampling = sampling_defaults(llm.folder, model)
        counts = {}
        if warm_up:
            counts = _warm_up(llm, for_people=log_format == "text")
            times.lap("programs")
        app, serving = application(
            llm.loaded,
            names=served_model_name or [model.model],
            allowed_hosts=connections.allowed_hosts
            or names_of(connections.host, private=private),
            allowed_origins=connections.allowed_origins or (),
            metrics_prefix=metrics_prefix,
            stall_seconds=connections.stall_seconds,
            sampling=sampling,
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


def _begin_device(model: ModelOptions) -> None:
    """While what else is needed is imported."""
    from fdjax import device

    device.claim_memory(model.memory_fraction)
    device.begin()


def _say_where_the_seconds_went(times: StartTimes, counts: Mapping[str, int]) -> None:
    seconds = {f"{name}_s": round(one, 1) for name, one in times.seconds.items()}
    fields = {**seconds, **counts}
    _LOGGER.info("ready after %.1f s", times.total, extra={"fields": fields})


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


def _warm_up(llm: "LLM", *, for_people: bool) -> dict[str, int]:
    """Compiles all programs; how many there are, and were not kept by another start."""
    import jax

    from fdjax.serve import compilation_cache

    # Noting which line of Python made each operation is a third of tracing, and nobody
    # asks a server. What was compiled before is found all the same.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    _LOGGER.info("compiling programs; it listens when they are ready")
    start = time.monotonic()
    with compilation_cache.counting() as num_compiled:
        count = llm.warm_up(progress=for_people)
    # What is here stays: the collector need not look through it while requests run.
    gc.collect()
    gc.freeze()
    if not for_people:
        _LOGGER.info("%d programs ready after %.1f s", count, time.monotonic() - start)
    return {"num_programs": count, "num_compiled": num_compiled()}
