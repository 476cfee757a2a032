"""A decode step of rows as unequal as a trace has them, by fdjax or by vLLM.

    python -m benchmarks.trace_decode TRACE
    JAX_PLATFORMS=cpu python -m benchmarks.trace_decode TRACE --engine vllm --out FILE

The trace is a CSV file with the columns of Azure's traces; benchmarks/data has the
first 500 rows of one. A step sees a request once for each token that it makes: 64
requests are drawn as often as they have output, and each of them at any point of it. So
long are the rows' prompts, of random tokens. All are handed over at once; a step is the
time between tokens from the last row's first token to the first row's last one, when
all of them decode.

Where vLLM is measured, `JAX_PLATFORMS=cpu` leaves it the GPU, so that the file must be
named: `trace_decode.json` in the device's folder of `benchmarks/results`. What it has
of another engine, model or number of rows is kept.
"""

import argparse
import asyncio
import pathlib
import statistics
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
from benchmarks.serving_online import Answered
from fdjax import device
from fdjax.cli.bench.arrivals import Arrival, random_prompts
from fdjax.cli.bench.trace import read_trace

ENGINES = {"fdjax": start_fdjax, "vllm": start_vllm}
NAMED = ("case", "engine", "model")


@dataclass(frozen=True)
class Steps:
    """What one batch took while all of its rows decoded.

    Attributes:
        ms: of a step, the median of rows.
        count: steps.
        tokens: of each row, in the middle of them.
    """

    ms: float
    count: int
    tokens: list[int]


def drawn_lengths(
    trace: Sequence[Arrival], rows: int, *, most: int, random: np.random.Generator
) -> list[int]:
    """Tokens of the rows of a step: prompts, and what has been made after them.

    Args:
        trace: requests; those that are too long are left out.
        rows: how many to draw; no request twice.
        most: tokens of a row.
        random: what draws.
    """
    fitting = [one for one in trace if one.input_tokens + one.output_tokens <= most]
    if len(fitting) < rows:
        raise SystemExit(f"{len(fitting)} requests of the trace fit, of {rows} rows")
    outputs = np.array([one.output_tokens for one in fitting])
    chosen = random.choice(len(fitting), rows, replace=False, p=outputs / outputs.sum())
    return [
        fitting[n].input_tokens + int(random.integers(fitting[n].output_tokens))
        for n in chosen
    ]


async def answers(
    generate: Generate, prompts: Sequence[list[int]], *, tokens: int
) -> list[Answered]:
    """Prompts that are handed over at once; times are from then on.

    Args:
        generate: an engine's.
        prompts: a row each.
        tokens: of output of each.
    """
    begin = time.perf_counter()

    async def answered(prompt: list[int]) -> Answered:
        times, counts = list[float](), list[int]()
        async for count in generate(prompt, tokens):
            if count:
                times.append(time.perf_counter() - begin)
                counts.append(count)
        assert sum(counts) == tokens, f"{sum(counts)} tokens came"
        return Answered(times, counts)

    return await asyncio.gather(*map(answered, prompts))


def steps_of(lengths: Sequence[int], done: Sequence[Answered]) -> Steps:
    """The steps in which all rows decode.

    Args:
        lengths: of the rows' prompts.
        done: what became of them.
    """
    begin = max(one.times[0] for one in done)
    end = min(one.times[-1] for one in done)
    milliseconds, counts, tokens = list[float](), list[int](), list[int]()
    for length, one in zip(lengths, done, strict=True):
        inside = [n for n, at in enumerate(one.times) if begin <= at <= end]
        if len(inside) < 2:
            raise SystemExit(
                "rows end before all of them decode; ask for more --tokens"
            )
        first, last = inside[0], inside[-1]
        made = sum(one.counts[first + 1 : last + 1])
        milliseconds.append((one.times[last] - one.times[first]) / made * 1e3)
        counts.append(made)
        tokens.append(length + sum(one.counts[: first + 1]) + made // 2)
    return Steps(statistics.median(milliseconds), min(counts), tokens)


async def measured(
    started: Started, lengths: Sequence[int], *, tokens: int, repeats: int
) -> dict[str, Any]:
    """One result object; a batch before those measured is not counted.

    Args:
        started: the engine.
        lengths: of the rows' prompts.
        tokens: of output of each.
        repeats: batches, each of other prompts: none finds its tokens in a cache.
    """
    found = list[Steps]()
    for seed in range(repeats + 1):
        random = np.random.default_rng(seed)
        prompts = random_prompts(lengths, random, vocab_size=started.vocab_size)
        done = await answers(started.generate, prompts, tokens=tokens)
        found.append(steps_of(lengths, done))
    times = [one.ms for one in found[1:]]
    middle = statistics.median(times)
    last = found[-1].tokens
    return {
        "rows": len(lengths),
        "ms_per_step": round(middle, 4),
        "steps": min(one.count for one in found[1:]),
        "spread": round((max(times) - min(times)) / middle, 4),
        "tokens_mean": round(statistics.mean(last), 1),
        "tokens_least": min(last),
        "tokens_most": max(last),
    }


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--engine", choices=ENGINES, default="fdjax")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="of output of a row")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures an engine, and adds it to `trace_decode.json`.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    if given.engine == "fdjax":
        device.claim_memory(given.memory_fraction)  # before its name starts JAX
        needs.gpu_for(given.model)
    out: pathlib.Path = given.out or (
        results.RESULTS / results.device_slug() / "trace_decode.json"
    )
    lengths = drawn_lengths(
        read_trace(given.trace),
        given.rows,
        most=given.max_model_len - given.tokens,
        random=np.random.default_rng(7),
    )
    settings = EngineSettings(
        model=given.model,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=given.rows,
        memory_fraction=given.memory_fraction,
    )
    row = asyncio.run(_measure(settings, given, lengths))
    print(row, flush=True)
    results.keep(out, [row], named=NAMED)


async def _measure(
    settings: EngineSettings, given: argparse.Namespace, lengths: Sequence[int]
) -> dict[str, Any]:
    started = ENGINES[given.engine](settings)
    try:
        found = await measured(
            started, lengths, tokens=given.tokens, repeats=given.repeats
        )
    finally:
        started.close()
    named = {"case": f"trace-{given.rows}", "engine": given.engine}
    return {**named, **found, **started.about, **results.provenance()}


if __name__ == "__main__":
    main()
