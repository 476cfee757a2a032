"""Options that the benchmarks share."""

import pathlib
from dataclasses import dataclass
from typing import Annotated

import typer

_SERVER = "Server"

ReportOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--json",
        help="Write everything measured as JSON to this file; - writes it to stdout, "
        "and nothing else.",
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """What is run how often in this process."""

    input_len: Annotated[
        int, typer.Option(min=1, help="Random token ids of each prompt.")
    ] = 128
    output_len: Annotated[
        int,
        typer.Option(min=1, help="Tokens to make of each; no end token ends it."),
    ] = 128
    warmup: Annotated[
        int,
        typer.Option(min=0, help="Runs before those that count; they compile."),
    ] = 1
    repeats: Annotated[int, typer.Option(min=1, help="Runs that count.")] = 5
    seed: Annotated[
        int, typer.Option(min=0, help="Of the prompts; each run has its own.")
    ] = 0


@dataclass(frozen=True)
class ServerOptions:
    """Which server, and how it is asked."""

    base_url: Annotated[
        str,
        typer.Option(
            help="The server, as http://127.0.0.1:8000, with or without /v1.",
            rich_help_panel=_SERVER,
        ),
    ]
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="The model, by the name that the server knows.",
            rich_help_panel=_SERVER,
        ),
    ]
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="OPENAI_API_KEY",
            show_default=False,
            help="Sent as bearer token; written nowhere.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            min=1e-3,
            help="Seconds after which a request has failed.",
            rich_help_panel=_SERVER,
        ),
    ] = 600.0
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Ask for all tokens, by a parameter that OpenAI's own API lacks.",
            rich_help_panel=_SERVER,
        ),
    ] = True
