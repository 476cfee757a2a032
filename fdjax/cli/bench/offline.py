"""Runs of `fdjax.LLM` on random prompts, timed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fdjax import device
from fdjax.cli import progress
from fdjax.cli.bench.arrivals import random_prompts
from fdjax.cli.bench.options import RunOptions
from fdjax.cli.loading import load
from fdjax.cli.options import ModelOptions
from fdjax.errors import ConfigError
from fdjax.generate.params import SamplingParams

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM


@dataclass(frozen=True)
class Run:
    """One run of a workload, in seconds.

    Attributes:
        total_s: from handing the prompts over to the last token.
        first_token_s: the same, to each prompt's first token.
        per_token_s: time of each prompt's tokens after the first, in the mean; empty
            where a prompt got one token, or all of them at once.
    """

    total_s: float
    first_token_s: tuple[float, ...]
    per_token_s: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """What was run, where, and how long it took.

    Attributes:
        conditions: for a report.
        runs: those that count.
    """

    conditions: dict[str, Any]
    runs: list[Run]


def measured(model: ModelOptions, options: RunOptions, *, num_prompts: int) -> Measured:
    """Loads a model and runs prompts several times, all of a run handed over at once.

    Raises:
        ConfigError: prompt and output are longer than the model may be, or the model
            cannot be loaded; other errors are those of `fdjax.LLM`.
    """
    llm = load(model)
    longest = options.input_len + options.output_len
    limit = llm.engine.plan.max_model_len
    if longest > limit:
        raise ConfigError(
            f"--input-len {options.input_len} and --output-len {options.output_len} "
            f"make {longest} tokens, but max_model_len is {limit}; lower one of them, "
            "or raise --max-model-len"
        )
    count = options.warmup + options.repeats
    with progress.stepping(count, "measuring") as advance:
        runs = measure(llm, options, num_prompts=num_prompts, on_run=advance)
    return Measured(_conditions(model, llm), runs)


def measure(
    llm: "LLM",
    options: RunOptions,
    *,
    num_prompts: int,
    on_run: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Runs prompts several times, after runs that do not count.

    Every run has prompts of its own: none is served by what another has left in the
    KV array.
    """
    random = np.random.default_rng(options.seed)
    lengths = [options.input_len] * num_prompts
    vocab_size = llm.config.embedding.vocab_size
    runs: list[Run] = []
    for _ in range(options.warmup + options.repeats):
        prompts = random_prompts(lengths, random, vocab_size=vocab_size)
        runs.append(_run(llm, prompts, options.output_len))
        on_run()
    return runs[options.warmup :]


def _conditions(model: ModelOptions, llm: "LLM") -> dict[str, Any]:
    plan = llm.engine.plan
    return {
        "model": model.model,
        "random_weights": model.random_weights,
        "dtype": np.dtype(plan.layout.dtype).name,
        "max_model_len": plan.max_model_len,
        "device": f"{device.platform()} ({device.kind()})",
        "jax": jax.__version__,
    }


def _run(llm: "LLM", prompts: Sequence[Sequence[int]], output_len: int) -> Run:
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    firsts, lasts = [0.0] * len(prompts), [0.0] * len(prompts)
    counts = [0] * len(prompts)
    start = time.perf_counter()
    for chunk in llm.stream(prompts, params):
        lasts[chunk.index] = time.perf_counter() - start
        if counts[chunk.index] == 0:
            firsts[chunk.index] = lasts[chunk.index]
        counts[chunk.index] += len(chunk.token_ids)
    total_s = time.perf_counter() - start
    assert min(counts) == max(counts) == output_len, "nothing else ends an output"
    pairs = zip(firsts, lasts, strict=True)
    steps = [(last - first) / (output_len - 1) for first, last in pairs if last > first]
    return Run(total_s, tuple(firsts), tuple(steps))
