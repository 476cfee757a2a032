"""Requests that come whether or not others are done: first tokens, and gaps.

    python -m benchmarks.serving_online TRACE --loads conv-20,conv-20-short

A load is named `conv-N`: requests with the lengths of a trace of conversations, 512 of
them at once, or else N a second, as a Poisson process. Of its form `-short`, prompts
are below 2,100 tokens; of `-long`, they are not. The trace is a CSV file with the
columns of Azure's traces; benchmarks/data has the first 500 rows of one (`--skip 0`).
Prompts are random, of each load others: none finds its tokens in a cache. The engine is
in this process, so that what is measured is neither a tokenizer nor HTTP. With
`--engine vllm` vLLM answers them, where it is installed; `JAX_PLATFORMS=cpu` leaves it
the GPU.
"""

import argparse
import asyncio
import dataclasses
import itertools
import pathlib
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import needs, results
from benchmarks.online_engines import (
    EngineSettings,
    Generate,
    Started,
    start_fdjax,
    start_vllm,
)
from fdjax import device
from fdjax.cli.bench.arrivals import Arrival, poisson
from fdjax.cli.bench.trace import read_trace
from fdjax.engine.policy import ORDERS, StepPolicy
from fdjax.errors import ConfigError

AT_ONCE = 512
SHORT_TOKENS = 2100
NAME = re.compile(r"conv-(?P<number>[0-9]+)(-(?P<form>short|long))?")
LOADS = "conv-512,conv-12,conv-20,conv-512-short,conv-12-short,conv-20-short"
# Requests of the trace that come before those measured: they warmed up its service.
SKIPPED = 600
DRAWN = (5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99)
"""Percentiles that a distribution is drawn of."""


@dataclass(frozen=True)
class Load:
    """Requests, and when they come.

    Attributes:
        name: of the load.
        arrivals: the requests, in order.
    """

    name: str
    arrivals: list[Arrival]

    @staticmethod
    def of(name: str, trace: Sequence[Arrival], *, seconds: float) -> "Load":
        """The load of a name.

        Args:
            name: `conv-N`, `conv-N-short` or `conv-N-long`.
            trace: whose lengths it has; those that are too long are left out.
            seconds: how long requests come for, if not at once.
        """
        if (read := NAME.fullmatch(name)) is None:
            raise SystemExit(
                f"load {name!r} is not like conv-12, conv-12-short or conv-12-long"
            )
        short = [one.input_tokens < SHORT_TOKENS for one in trace]
        wanted = {"short": short, "long": np.logical_not(short)}
        form = read["form"]
        chosen_of = wanted[form] if form else itertools.repeat(True)
        rate, sized = int(read["number"]), [*itertools.compress(trace, chosen_of)]
        count = AT_ONCE if rate == AT_ONCE else int(rate * seconds)
        if not sized:
            raise SystemExit(f"the trace has no requests for {name}")
        chosen = sized[:count]
        if rate == AT_ONCE:
            return Load(name, [dataclasses.replace(one, at_s=0.0) for one in chosen])
        return Load(name, poisson(chosen, np.random.default_rng(7), rate=rate))


def fitting_of(given: argparse.Namespace, max_model_len: int) -> list[Arrival]:
    """The requests of a command line's trace that fit the model's length.

    Raises:
        SystemExit: it cannot be read, or none is left of it.
    """
    try:
        arrivals = read_trace(given.trace)
    except (OSError, ConfigError) as error:
        raise SystemExit(str(error)) from error
    if len(arrivals) <= given.skip:
        raise SystemExit(
            f"{given.trace} has {len(arrivals)} requests, and --skip leaves out "
            f"{given.skip}; give fewer, as --skip 0"
        )
    return [
        one
        for one in arrivals[given.skip :]
        if one.input_tokens + one.output_tokens <= max_model_len
    ]


@dataclass(frozen=True)
class Answered:
    """What became of one request.

    Attributes:
        times: seconds from its start to each time that tokens came.
        counts: how many came each time.
    """

    times: list[float]
    counts: list[int]

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first ones; `None` if there is none."""
        later = sum(self.counts[1:])
        return (self.times[-1] - self.times[0]) / later if later else None


async def answered(
    generate: Generate, arrival: Arrival, begin: float, *, vocab_size: int, seed: str
) -> Answered:
    """Sends one request when it is due, and reads its tokens."""
    draw = random.Random(seed)
    await asyncio.sleep(max(0.0, begin + arrival.at_s - time.perf_counter()))
    prompt = draw.choices(range(vocab_size), k=arrival.input_tokens)
    start, times, counts = time.perf_counter(), list[float](), list[int]()
    async for count in generate(prompt, arrival.output_tokens):
        if count:
            times.append(time.perf_counter() - start)
            counts.append(count)
    assert sum(counts) == arrival.output_tokens, (sum(counts), arrival)
    return Answered(times, counts)


async def measured(
    generate: Generate, load: Load, *, vocab_size: int
) -> dict[str, Any]:
    """One load, to its end."""
    begin = time.perf_counter()
    done = await asyncio.gather(
        *(
            answered(
                generate, arrival, begin, vocab_size=vocab_size, seed=f"{load.name} {n}"
            )
            for n, arrival in enumerate(load.arrivals)
        )
    )
    seconds = time.perf_counter() - begin
    per_token = [one.per_token_s for one in done]
    gaps = [gap for one in done for gap in np.diff(one.times)]
    tokens = sum(sum(one.counts) for one in done)
    return {
        "load": load.name,
        "requests": len(done),
        "input_tokens": sum(one.input_tokens for one in load.arrivals),
        "output_tokens": tokens,
        "seconds": round(seconds, 2),
        "requests_per_s": round(len(done) / seconds, 2),
        "output_tokens_per_s": round(tokens / seconds, 1),
        **first_tokens(load, done),
        "tpot_ms": percentiles([one for one in per_token if one is not None]),
        "gap_ms": percentiles(gaps),
        "distributions_ms": {
            "at": DRAWN,
            "ttft_ms": percentiles([one.times[0] for one in done], at=DRAWN),
            "gap_ms": percentiles(gaps, at=DRAWN),
        },
    }


async def served(started: Started, load: Load) -> dict[str, Any]:
    """One load, and how often the engine has put a sequence back, if it counts that."""
    preemptions = started.preemptions
    before = preemptions() if preemptions else 0
    row = await measured(started.generate, load, vocab_size=started.vocab_size)
    return row | ({"preemptions": preemptions() - before} if preemptions else {})


def first_tokens(load: Load, done: Sequence[Answered]) -> dict[str, list[float] | None]:
    """Percentiles of their times: of all, and of short and of long prompts."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for arrival, one in zip(load.arrivals, done, strict=True):
        times[arrival.input_tokens < SHORT_TOKENS].append(one.times[0])
    return {
        "ttft_ms": percentiles(times[True] + times[False]),
        "ttft_short_ms": percentiles(times[True]),
        "ttft_long_ms": percentiles(times[False]),
    }


def percentiles(
    seconds: Sequence[float], *, at: Sequence[int] = (50, 90, 99)
) -> list[float] | None:
    """Those of some times, in milliseconds; `None` if there is no time."""
    if not seconds:
        return None
    found = np.percentile(seconds, at) * 1e3
    return [round(float(one), 1) for one in found]


def add_skip(parser: argparse.ArgumentParser) -> None:
    """Which requests of a trace are left out."""
    parser.add_argument(
        "--skip",
        type=int,
        default=SKIPPED,
        help="requests of the trace to leave out first (default: %(default)s)",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """What each program has that runs such loads."""
    parser.add_argument("trace", type=pathlib.Path)
    add_skip(parser)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--out", type=pathlib.Path)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--engine", choices=("fdjax", "vllm"), default="fdjax")
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-itl-ms", type=float)
    parser.add_argument(
        "--prefill-order", choices=ORDERS, default=StepPolicy.prefill_order
    )
    parser.add_argument("--no-mixed-steps", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes `serving_online.json`.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    device.claim_memory(given.memory_fraction)  # before its name is asked for
    if given.engine == "fdjax":
        needs.gpu_for(given.model)
    out = given.out or results.RESULTS / results.device_slug() / "serving_online.json"
    fitting = fitting_of(given, given.max_model_len)
    loads = [
        Load.of(name, fitting, seconds=given.seconds) for name in given.loads.split(",")
    ]
    settings = EngineSettings(
        model=given.model,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        memory_fraction=given.memory_fraction,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_itl_ms=given.max_itl_ms,
        prefill_order=given.prefill_order,
        mixed_steps=not given.no_mixed_steps,
    )
    asyncio.run(_measure_all(settings, given.engine, loads, out))


async def _measure_all(
    settings: EngineSettings, engine: str, loads: Sequence[Load], out: pathlib.Path
) -> None:
    started = start_vllm(settings) if engine == "vllm" else start_fdjax(settings)
    common = {"engine": engine, **started.about, **results.provenance()}
    print(common, flush=True)
    rows: list[dict[str, Any]] = []
    try:
        for load in loads:
            row = await served(started, load)
            rows.append(row | common)
            print(row, flush=True)
            results.write(out, rows)
    finally:
        started.close()


if __name__ == "__main__":
    main()
