"""`fdjax serve`: the OpenAI API, until a signal ends it."""

import gc
import logging
import logging.config
import pathlib
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdjax.cli.errors import FAILED, reported
from fdjax.cli.loading import load, sampling_defaults
from fdjax.cli.options import DebugOption, ModelOptions, command
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM

_LOGGER = logging.getLogger(__name__)
_SERVER = "Server"


@command
def serve(
    *,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="What the API calls the model; may be repeated. --model by default.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="0 takes a free one.", rich_help_panel=_SERVER
        ),
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="FDJAX_API_KEY",
            help="Required of clients; may be repeated. Without one, all are served.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="After a signal, for requests that are under way.",
            rich_help_panel=_SERVER,
        ),
    ] = 30.0,
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
    max_queued_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples that may wait; more are refused with 503. No limit if unset.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens that they may have together; at least --max-model-len.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(help="Of the log, on stderr.", rich_help_panel=_SERVER),
    ] = "text",
    warm_up: Annotated[
        bool, typer.Option(help="Compile all programs first.", rich_help_panel=_SERVER)
    ] = True,
    model: ModelOptions,
    debug: DebugOption = False,
) -> None:
    """Serve a model over HTTP, in the words of OpenAI's API.

    The first Ctrl-C or SIGTERM lets requests that are under way end; the second stops
    at once.
    """
    with reported(debug=debug):
        _check_extra()
        from fdjax.serve.http import logs, traces
        from fdjax.serve.http.keys import check_keys
        from fdjax.serve.http.run import DrainingServer
        from fdjax.serve.http.wiring import application

        check_keys(api_key or [])
        logging.config.dictConfig(logs.log_config(log_format))
        traces.start_export()
        if compilation_cache:
            _keep_programs(compilation_cache_dir)
        llm = load(
            model,
            max_queued_requests=max_queued_requests,
            max_queued_tokens=max_queued_tokens,
        )
        sampling = sampling_defaults(llm.folder, model)
        if warm_up:
            _warm_up(llm, for_people=log_format == "text")
        app, serving = application(
            llm,
            names=served_model_name or [model.model],
            api_keys=api_key or [],
            sampling=sampling,
            max_queued_requests=max_queued_requests,
        )
        try:
            DrainingServer(app, host=host, port=port, drain_seconds=drain_seconds).run()
        finally:
            serving.close()
        if serving.errored:
            raise typer.Exit(FAILED)


def _check_extra() -> None:
    try:
        import fastapi
        import llguidance
        import prometheus_client
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"fdjax serve needs {error.name}; install fdjax[serve]"
        ) from error
    del fastapi, llguidance, prometheus_client, uvicorn


def _warm_up(llm: "LLM", *, for_people: bool) -> None:
    import jax

    # Noting which line of Python made each operation is a third of tracing, and nobody
    # asks a server. What was compiled before is found all the same.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    start = time.monotonic()
    count = llm.warm_up(progress=for_people)
    # What is here stays: the collector need not look through it while requests run.
    gc.collect()
    gc.freeze()
    if not for_people:
        _LOGGER.info("%d programs ready after %.1f s", count, time.monotonic() - start)


def _keep_programs(folder: pathlib.Path | None) -> None:
    """Uses the folder that was asked for; else the user's, if it can be used."""
    from fdjax.serve import compilation_cache

    if folder is not None:
        compilation_cache.use(folder)
    elif not compilation_cache.is_configured():
        try:
            compilation_cache.use(compilation_cache.default_folder())
        except ConfigError as error:  # a home that is read-only is no reason to stop
            _LOGGER.warning("programs are not kept: %s", error)
