"""`fdjax serve`: the OpenAI API, until a signal ends it."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.cli import progress
from fdjax.cli.errors import FAILED, reported
from fdjax.cli.loading import load, sampling_defaults
from fdjax.cli.options import DebugOption, ModelOptions, command
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM

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
        from fdjax.serve.http.run import DrainingServer
        from fdjax.serve.http.wiring import application

        llm = load(model)
        sampling = sampling_defaults(llm.folder, model)
        if warm_up:
            _warm_up(llm, sampling)
        app, serving = application(
            llm,
            names=served_model_name or [model.model],
            api_keys=api_key or [],
            sampling=sampling,
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
        import prometheus_client
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"fdjax serve needs {error.name}; install the extra: "
            "pip install 'fdjax[serve]'"
        ) from error
    del fastapi, prometheus_client, uvicorn


def _warm_up(llm: "LLM", sampling: Mapping[str, Any]) -> None:
    """Compiles what greedy requests need, and those that leave the sampling open."""
    from fdjax.generate.params import SamplingParams

    start = time.monotonic()
    params = [SamplingParams(temperature=0.0), SamplingParams(**sampling)]
    count = llm.engine.warm_up(params)
    seconds = time.monotonic() - start
    progress.note(f"[{count} programs ready after {seconds:.1f} s]")
