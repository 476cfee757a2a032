"""Engines that get whole batches at once: fdjax, vLLM, and transformers."""

import contextlib
import importlib
import pathlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import needs
from benchmarks.cases import Case
from benchmarks.made_up import (
    GRAPHS,
    VLLM_TOKENS,
    folder_of,
    positions,
    transformers_model,
)
from fdjax import LLM, SamplingParams


class OutOfMemoryError(Exception):
    """A batch does not fit an engine that makes room only as it goes."""


@dataclass(frozen=True)
class BatchSettings:
    """What all engines are started with.

    Attributes:
        model: a name in `configs/models`, whose weights are made up, or one that fdjax
            finds elsewhere.
        max_model_len: tokens of a sequence; a model made for fewer gets more positions.
        max_num_seqs: rows of the largest batch.
        memory_fraction: of the device's memory, where an engine takes it at its start.
    """

    model: str
    max_model_len: int
    max_num_seqs: int
    memory_fraction: float

    @property
    def config(self) -> pathlib.Path:
        """The configuration's file, if there is one."""
        return pathlib.Path(f"configs/models/{self.model}.json")

    @property
    def overrides(self) -> dict[str, int]:
        """Fields of the configuration that are replaced."""
        return positions(self.config, self.max_model_len)


@dataclass(frozen=True)
class BatchEngine:
    """An engine that is ready.

    Attributes:
        seconds: the time of one batch, from handing it over to its last token; raises
            `OutOfMemoryError` where it does not fit.
        about: it, for results.
        put_backs: how many sequences had to give way so far; `None`: nobody counts.
        close: frees the device.
    """

    seconds: Callable[[Case], float]
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    put_backs: Callable[[], int] | None = None
    close: Callable[[], object] = lambda: None


def start_fdjax(settings: BatchSettings) -> BatchEngine:
    """This project's; prompts are found in no cache."""
    made_up: dict[str, Any] = {}
    if settings.config.exists():
        made_up = {"dtype": "bfloat16", "random_weights": True}
        made_up["hf_overrides"] = settings.overrides
    llm = LLM(
        settings.config if made_up else settings.model,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        memory_fraction=settings.memory_fraction,
        enable_prefix_caching=False,
        **made_up,
    )

    def seconds(case: Case) -> float:
        prompts = case.prompts(llm.config.embedding.vocab_size).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=case.steps, ignore_eos=True)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params)
        took = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == case.steps for one in outputs)
        return took

    return BatchEngine(seconds, put_backs=lambda: llm.engine.scheduler.num_preemptions)


def start_vllm(settings: BatchSettings) -> BatchEngine:
    """The `LLM` of vLLM, where it is installed, with CUDA graphs."""
    needs.packages("vllm")
    vllm = importlib.import_module("vllm")
    llm = vllm.LLM(
        model=folder_of(settings.config, settings.overrides),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=VLLM_TOKENS,
        gpu_memory_utilization=settings.memory_fraction,
        enable_prefix_caching=False,
        compilation_config={"cudagraph_capture_sizes": GRAPHS},
    )
    vocab_size = llm.llm_engine.model_config.get_vocab_size()

    def seconds(case: Case) -> float:
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=case.steps, ignore_eos=True, detokenize=False
        )
        prompts = [
            {"prompt_token_ids": ids} for ids in case.prompts(vocab_size).tolist()
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == case.steps for one in outputs)
        return took

    about = {"version": vllm.__version__}
    return BatchEngine(seconds, about, close=llm.llm_engine.engine_core.shutdown)


def start_transformers(settings: BatchSettings) -> BatchEngine:
    """`generate` of transformers: a batch is a tensor, its memory made on the way.

    Args:
        settings: of which it takes no fraction of memory.
    """
    needs.packages("torch")
    import torch  # pyright: ignore[reportMissingImports]  (group parity)
    import transformers

    folder = folder_of(settings.config, settings.overrides)
    model, place = transformers_model(folder)

    def seconds(case: Case) -> float:
        prompts = case.prompts(model.config.vocab_size)
        ids = torch.as_tensor(prompts, device=place)
        start = time.perf_counter()
        with _refused(torch), torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=case.steps,
                min_new_tokens=case.steps,
                pad_token_id=0,
            ).cpu()
        took = time.perf_counter() - start
        assert out.shape == (case.batch, case.context + case.steps)
        return took

    version = f"{transformers.__version__}, torch {torch.__version__}"
    return BatchEngine(seconds, {"version": version})


@contextlib.contextmanager
def _refused(torch: Any) -> Generator[None]:
    """Memory that torch has not is our error; and what it holds is given back."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        told = str(error)
    else:
        return
    torch.cuda.empty_cache()
    raise OutOfMemoryError(told)


ENGINES: dict[str, Callable[[BatchSettings], BatchEngine]] = {
    "fdjax": start_fdjax,
    "vllm": start_vllm,
    "transformers": start_transformers,
}
"""What starts each engine."""
