"""Engines that answer requests as they come, in this process: fdjax, and vLLM."""

import importlib
import itertools
import json
import pathlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import needs
from benchmarks.made_up import GRAPHS, VLLM_TOKENS, folder_of
from fdjax import LLM, SamplingParams
from fdjax.engine.engine import Engine
from fdjax.engine.policy import PrefillOrder, StepPolicy
from fdjax.garbage import settle
from fdjax.serve.async_llm import AsyncLLM

type Generate = Callable[[list[int], int], AsyncIterator[int]]
"""Continues a prompt by so many tokens; tells how many came, each time some do."""


@dataclass(frozen=True)
class EngineSettings:
    """What both engines are started with; the last three are of fdjax alone.

    Attributes:
        model: a configuration, whose weights are made up.
        dtype: of them.
        max_model_len: tokens of a sequence.
        max_num_seqs: that run at once.
        memory_fraction: of the device's memory.
        max_num_batched_tokens: of a step; `None` is the engine's own default.
        max_itl_ms: see `fdjax serve --help`.
        prefill_order: see there.
        mixed_steps: see there.
    """

    model: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    memory_fraction: float
    max_num_batched_tokens: int | None = None
    max_itl_ms: float | None = None
    prefill_order: str = StepPolicy.prefill_order
    mixed_steps: bool = True


@dataclass(frozen=True)
class Started:
    """An engine that is ready.

    Attributes:
        generate: asks it.
        about: it, for results.
        vocab_size: of the model.
        preemptions: how often it has put a sequence back; `None`: nobody counts.
        close: ends it.
        reorder: has prompts in another order; `None`: it has one alone.
        engine: what its thread steps; `None`: it is another project's.
    """

    generate: Generate
    about: dict[str, Any]
    vocab_size: int
    preemptions: Callable[[], int] | None
    close: Callable[[], object]
    reorder: Callable[[PrefillOrder], None] | None = None
    engine: Engine | None = None


def start_fdjax(settings: EngineSettings) -> Started:
    """This project's engine, with every program compiled."""
    start = time.perf_counter()
    steps: dict[str, Any] = {
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_itl_ms": settings.max_itl_ms,
        "prefill_order": settings.prefill_order,
        "mixed_steps": settings.mixed_steps,
    }
    llm = LLM(
        settings.model,
        dtype=settings.dtype,
        random_weights=True,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        memory_fraction=settings.memory_fraction,
        **steps,
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    programs, layout = llm.warm_up([greedy]), llm.engine.plan.layout
    steps["max_num_batched_tokens"] = llm.loaded.settings.max_batched_tokens
    settle()  # as `fdjax serve` does before it is ready
    engine = AsyncLLM.of(llm)

    async def generate(prompt: list[int], count: int) -> AsyncIterator[int]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        async for chunk in engine.generate(prompt, params):
            yield len(chunk.token_ids)

    about = _about(settings, start) | {
        **steps,
        "programs": programs,
        "kv_tokens": layout.num_pages * layout.page_size,
    }
    scheduler = llm.engine.scheduler

    def reorder(order: PrefillOrder) -> None:
        scheduler.prompts.order = order

    return Started(
        generate,
        about,
        llm.config.embedding.vocab_size,
        lambda: scheduler.num_preemptions,
        engine.close,
        reorder,
        llm.engine,
    )


def start_vllm(settings: EngineSettings) -> Started:
    """An `AsyncLLM` of vLLM, where it is installed, with CUDA graphs."""
    needs.packages("vllm")
    start = time.perf_counter()
    vllm = importlib.import_module("vllm")
    arguments = importlib.import_module("vllm.engine.arg_utils")
    parameters = importlib.import_module("vllm.sampling_params")
    tokens = settings.max_num_batched_tokens or VLLM_TOKENS
    given = arguments.AsyncEngineArgs(
        model=folder_of(settings.model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        gpu_memory_utilization=settings.memory_fraction,
        max_num_batched_tokens=tokens,
        disable_log_stats=True,
        compilation_config={"cudagraph_capture_sizes": GRAPHS},
    )
    engines = importlib.import_module("vllm.v1.engine.async_llm")
    engine = engines.AsyncLLM.from_engine_args(given)
    names = map(str, itertools.count())

    async def generate(prompt: list[int], count: int) -> AsyncIterator[int]:
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            detokenize=False,
            output_kind=parameters.RequestOutputKind.DELTA,
        )
        asked = {"prompt_token_ids": prompt}
        async for output in engine.generate(asked, params, next(names)):
            yield len(output.outputs[0].token_ids)

    about = _about(settings, start) | {
        "max_num_batched_tokens": tokens,
        "version": vllm.__version__,
    }
    vocab_size = json.loads(pathlib.Path(settings.model).read_text())["vocab_size"]
    return Started(generate, about, vocab_size, None, engine.shutdown)


def _about(settings: EngineSettings, start: float) -> dict[str, Any]:
    return {
        "model": pathlib.Path(settings.model).stem,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": settings.max_model_len,
        "start_s": round(time.perf_counter() - start, 1),
    }
