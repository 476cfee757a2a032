"""What `fdjax bench serve` is to send, from its options."""

import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from fdjax.cli.bench.arrivals import Arrival

NUM_PROMPTS = 64
LENGTH = 128

_TRAFFIC = "Traffic"


def _option(text: str, *, default: str | bool = False, **limits: Any) -> Any:
    return typer.Option(
        help=text, rich_help_panel=_TRAFFIC, show_default=default, **limits
    )


@dataclass(frozen=True)
class TrafficOptions:
    """How many requests come when, and how long they are."""

    trace: Annotated[
        pathlib.Path | None,
        _option(
            "Times and token counts: a CSV file with the columns TIMESTAMP, "
            "ContextTokens and GeneratedTokens.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None
    request_rate: Annotated[
        float | None,
        _option(
            "Requests a second, as a Poisson process; with --trace, only its token "
            "counts are taken. Without either, all come at once.",
            min=1e-6,
            max=1e6,
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        _option(
            "How many requests.", default=f"{NUM_PROMPTS}, or the whole trace", min=1
        ),
    ] = None
    input_len: Annotated[
        int | None, _option("Tokens of a prompt.", default=str(LENGTH), min=1)
    ] = None
    output_len: Annotated[
        int | None, _option("Tokens to ask for.", default=str(LENGTH), min=1)
    ] = None
    speed: Annotated[
        float | None,
        _option("Replay a trace this much faster.", default="1", min=1e-3, max=1e3),
    ] = None
    length_scale: Annotated[
        float | None,
        _option(
            "Multiply the token counts of a trace.", default="1", min=1e-3, max=1e3
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        _option(
            "Most requests under way; others wait here, and are said to be late.", min=1
        ),
    ] = None
    warmup: Annotated[
        int, _option("Requests before those that count.", default=True, min=0)
    ] = 1
    vocab_size: Annotated[
        int,
        _option(
            "Token ids of prompts are below it, as they must be below the model's.",
            default=True,
            min=1,
        ),
    ] = 1024
    seed: Annotated[
        int | None,
        _option(
            "Of prompts and Poisson arrivals. A server that keeps prefixes answers the "
            "prompts of a seed faster the second time.",
            default="drawn",
            min=0,
        ),
    ] = None


def arrivals_of(
    options: TrafficOptions, random: "np.random.Generator"
) -> "list[Arrival]":
    """The requests that were asked for, in the order of their times.

    Raises:
        ConfigError: options contradict each other, or the trace cannot be used.
    """
    from fdjax.cli.bench.arrivals import alike, poisson, scaled
    from fdjax.cli.bench.trace import read_trace

    _check(options)
    if options.trace is None:
        arrivals = alike(
            options.num_prompts or NUM_PROMPTS,
            input_tokens=options.input_len or LENGTH,
            output_tokens=options.output_len or LENGTH,
        )
    else:
        arrivals = scaled(
            read_trace(options.trace, count=options.num_prompts),
            speed=options.speed or 1.0,
            length_scale=options.length_scale or 1.0,
        )
    if options.request_rate is None:
        return arrivals
    return poisson(arrivals, random, rate=options.request_rate)


def _check(options: TrafficOptions) -> None:
    """No option is ignored without a word."""
    if options.trace is None:
        unused = ("speed", "length_scale")
        because = "give --trace, or leave it out"
    else:
        unused = ("input_len", "output_len")
        because = "the trace has the lengths; leave it out"
    for name in unused:
        if getattr(options, name) is not None:
            _refuse(name, because)
    if options.speed is not None and options.request_rate is not None:
        _refuse("speed", "the times are those of --request-rate; leave one of them out")


def _refuse(name: str, because: str) -> None:
    raise ConfigError(f"--{name.replace('_', '-')} has no meaning here: {because}")
