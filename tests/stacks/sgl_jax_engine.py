"""Tokens of sgl-jax's engine, in a process of its own: `... FOLDER native|fdjax`.

Prints JSON: for each of two rounds of the same prompts, and for one prompt alone, the
tokens and how many of the prompt's were found in the cache.
"""

import json
import os
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
# Prompts of several chunks, of parts of pages, and of less.
PROMPTS = [[5 + i % 50 for i in range(length)] for length in (40, 7, 70, 3)]
ALONE = PROMPTS[1:2]  # whose steps are programs of one row
NEW_TOKENS = 24


def make_engine(folder: str, backend: str) -> Any:
    """In this process, for as many requests as there are prompts."""
    from sgl_jax.srt.entrypoints.engine import (  # pyright: ignore[reportMissingImports]  (installed where this runs)
        Engine,
    )

    engine = Engine(
        model_path=folder,
        device="cpu",
        attention_backend="native",
        enable_single_process=True,
        page_size=16,
        disable_precompile=True,
        skip_server_warmup=True,
        dtype="float32",
        mem_fraction_static=0.02,
        max_total_tokens=1024,
        max_running_requests=4,
        chunked_prefill_size=32,
        log_level="error",
        skip_tokenizer_init=True,
        # With it sgl-jax 0.1.0rc0 gives other tokens once in six runs on a CPU, by its
        # own backend, too.
        disable_overlap_schedule=True,
    )
    if backend == "fdjax":
        from fdjax.integrations.sgl_jax import attach

        attach(engine)
    return engine


def main() -> None:
    """Runs all rounds."""
    engine = make_engine(*sys.argv[1:])
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    rounds = [
        [
            (output["output_ids"], output["meta_info"]["cached_tokens"])
            for output in engine.generate(input_ids=prompts, sampling_params=params)
        ]
        for prompts in (PROMPTS, PROMPTS, ALONE)
    ]
    print(json.dumps(rounds))
    engine.shutdown()


if __name__ == "__main__":
    main()
