"""`fdjax bench serve`: a server under the traffic of a trace, or of a formula."""

import dataclasses
import pathlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.cli import progress
from fdjax.cli.bench.options import ReportOption, ServerOptions
from fdjax.cli.bench.traffic import TrafficOptions, arrivals_of
from fdjax.cli.errors import reported
from fdjax.cli.options import DebugOption, command
from fdjax.cli.places import check_places
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from fdjax.cli.bench.arrivals import Arrival
    from fdjax.cli.bench.client import Client
    from fdjax.cli.bench.replay import Replay


@command
def serve(
    *,
    server: ServerOptions,
    traffic: TrafficOptions,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS",
            help="Count requests within limits, in milliseconds: ttft:500, itl:50, "
            "tpot:50 or e2e:5000. May be repeated, or hold several: 'ttft:500 itl:50'.",
        ),
    ] = None,
    json_file: ReportOption = None,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where to draw the latencies; needs matplotlib."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Send requests to an OpenAI-compatible server, and measure its answers.

    Requests arrive as in a trace, as a Poisson process, or all at once, whether or not
    earlier ones have ended. Prompts are random token ids. A failed request is counted
    and shown, and is in no latency; the exit code is 1 if none succeeded.
    """
    with reported(debug=debug):
        from fdjax.cli.bench.client import check_server
        from fdjax.cli.bench.goodput import parse_limits
        from fdjax.cli.bench.report import publish
        from fdjax.cli.bench.serve_tables import show
        from fdjax.cli.bench.summary import summarise

        limits_ms = parse_limits(goodput or [])
        check_places(json_file, plot)
        check_server(server.base_url)
        seed = secrets.randbits(31) if traffic.seed is None else traffic.seed
        traffic = dataclasses.replace(traffic, seed=seed)
        replayed = _replayed(server, traffic, seed=seed)
        summary = summarise(replayed, limits_ms)
        title = f"{server.model} at {server.base_url}"
        findings = {
            **_conditions(server, traffic),
            **dataclasses.asdict(summary),
            "outcomes": [one.to_json() for one in replayed.outcomes],
        }
        publish("serve", findings, path=json_file, show=lambda: show(summary, title))
        if plot is not None:
            from fdjax.cli.bench.serve_plots import draw

            draw(replayed.outcomes, limits_ms, plot, title=title)
        progress.note(f"[seed {seed}]")
        if not summary.completed:
            raise ConfigError(f"all {summary.requests} requests failed")


def _replayed(server: ServerOptions, traffic: TrafficOptions, *, seed: int) -> "Replay":
    """What became of the requests that count."""
    import asyncio

    import numpy as np

    from fdjax.cli.bench.arrivals import random_prompts
    from fdjax.cli.bench.client import Client

    random = np.random.default_rng(seed)
    arrivals = arrivals_of(traffic, random)
    every = [*arrivals, *arrivals[:1] * traffic.warmup]
    lengths = [one.input_tokens for one in every]
    prompts = random_prompts(lengths, random, vocab_size=traffic.vocab_size)
    return asyncio.run(_run(Client(server, prompts), arrivals, traffic))


async def _run(
    client: "Client", arrivals: "Sequence[Arrival]", traffic: TrafficOptions
) -> "Replay":
    from fdjax.cli.bench.replay import replay

    async with client:
        for i in range(traffic.warmup):
            await client.warm_up(len(arrivals) + i, arrivals[0])
        with progress.stepping(len(arrivals), "sending") as advance:
            return await replay(
                arrivals,
                client.send,
                max_concurrency=traffic.max_concurrency,
                on_end=advance,
            )


def _conditions(server: ServerOptions, traffic: TrafficOptions) -> dict[str, Any]:
    asked = dataclasses.asdict(server)
    del asked["api_key"]
    trace = None if traffic.trace is None else str(traffic.trace)
    return {**asked, "traffic": {**dataclasses.asdict(traffic), "trace": trace}}
