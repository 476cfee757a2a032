"""Beam searches by others on the same machine: transformers, vLLM with a plugin."""

import importlib
import time
from collections.abc import Callable, Sequence

from benchmarks import needs
from benchmarks.made_up import folder_of, transformers_model
from benchmarks.searches import Run, Search, Times


def transformers_run(model: str, some: Sequence[Search]) -> tuple[Run, str]:
    """By transformers, on its GPU if there is one; and its version.

    Args:
        model: a configuration.
        some: what is measured; it may be anything.
    """
    del some
    needs.packages("torch")
    import torch  # pyright: ignore[reportMissingImports]  (group parity)
    import transformers

    peer, place = transformers_model(folder_of(model))

    def seconds(search: Search, tokens: int) -> float:
        ids = torch.as_tensor(search.drawn(peer.config.vocab_size), device=place)
        start = time.perf_counter()
        with torch.inference_mode():
            out = peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=max(search.beams, 1),
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
            out.cpu()
        return time.perf_counter() - start

    return _of(seconds), f"transformers {transformers.__version__}"


def vllm_run(model: str, some: Sequence[Search]) -> tuple[Run, str]:
    """By vLLM with `vllm-beam-search-plugin`, where both are installed.

    Args:
        model: a configuration, whose weights are made up.
        some: what is measured.
    """
    needs.packages("vllm", "vllm_beam_search")
    vllm = importlib.import_module("vllm")
    scheduler = importlib.import_module("vllm_beam_search.scheduler")
    metadata = importlib.import_module("importlib.metadata")
    importlib.import_module("vllm_beam_search").register_beam_search_plugin()
    llm = vllm.LLM(
        model=folder_of(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max(one.context + one.tokens for one in some),
        # A search and its beams: with room for the beams alone it waits for ever.
        max_num_seqs=2 * max(one.prompts * max(one.beams, 1) for one in some),
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
        scheduler_cls=scheduler.BeamSearchScheduler,
    )
    vocab_size = llm.llm_engine.model_config.get_vocab_size()

    def seconds(search: Search, tokens: int) -> float:
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"beam_width": search.beams} if search.beams else None,
        )
        prompts = [
            {"prompt_token_ids": ids} for ids in search.drawn(vocab_size).tolist()
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        taken = time.perf_counter() - start
        lengths = {len(one.token_ids) for each in outputs for one in each.outputs}
        assert lengths == {tokens}, lengths
        return taken

    plugin = metadata.version("vllm-beam-search-plugin")
    return _of(seconds), f"vLLM {vllm.__version__}, plugin {plugin}"


def _of(seconds: Callable[[Search, int], float]) -> Run:
    """Of an engine that says only when all is done: first tokens are a run of one."""

    def run(search: Search) -> Times:
        return Times(seconds(search, 1), seconds(search, search.tokens))

    return run


PEERS = {"transformers": transformers_run, "vllm": vllm_run}
