"""Steps of sgl-jax's engine, by its own attention and by fdjax's, in one process.

`--backends native` times one alone, where the memory of two engines is not there.

A step's time is that of many tokens less that of one, of prompts that the engine has
in its cache: no time of prompts is in it.

It runs where `.ci/run stacks` has installed sgl-jax (`.venv-sgl-jax`). Weights are made
up (zeros), as times do not depend on them, and so are prompts. On a GPU sgl-jax wants
`JAX_PLATFORMS=cuda`. `--tiny` is for a CPU, to see that it runs: its times mean
nothing.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax

from benchmarks import needs, results
from benchmarks.cases import Case, parse_cases

BACKENDS = ("fdjax", "native")
CHUNK = 512  # tokens of a prompt at once: sgl-jax's own attention takes memory for more
SMALL = 1 << 20  # bytes: less is no weight and no cache
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "vocab_size": 128256,
}
TINY = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def engine_of(folder: str, cases: list[Case], *, backend: str, device: str) -> Any:
    """With room for every case, and few shapes to compile for."""
    from sgl_jax.srt.entrypoints.engine import (  # pyright: ignore[reportMissingImports]  (installed where this runs)
        Engine,
    )

    engine = Engine(
        model_path=folder,
        load_format="dummy",
        device=device,
        attention_backend="native",
        enable_single_process=True,
        page_size=16,
        # Its own attention takes every row to be as long as this.
        context_length=max(case.max_model_len for case in cases) + 16,
        disable_precompile=True,
        skip_server_warmup=True,
        skip_tokenizer_init=True,
        chunked_prefill_size=CHUNK,
        precompile_token_paddings=[CHUNK],
        precompile_bs_paddings=sorted({case.batch for case in cases}),
        max_running_requests=max(case.batch for case in cases),
        # Half as many again: outputs stay in the cache for a while, too.
        max_total_tokens=max(case.batch * case.max_model_len * 3 // 2 for case in cases)
        + 1024,
        mem_fraction_static=0.1 if device == "cpu" else 0.9,
        log_level="error",
    )
    if backend == "fdjax":
        from fdjax.integrations.sgl_jax import attach

        attach(engine)
    return engine


def seconds(engine: Any, case: Case, *, new_tokens: int, vocab_size: int) -> float:
    """Of one batch, from its prompts to its last token."""
    prompts = case.prompts(vocab_size)
    params = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    start = time.perf_counter()
    outputs = engine.generate(
        input_ids=prompts.tolist(),
        sampling_params=params,
    )
    elapsed = time.perf_counter() - start
    made = {len(output["output_ids"]) for output in outputs}
    if made != {new_tokens}:
        raise RuntimeError(f"asked for {new_tokens} tokens a row, made {sorted(made)}")
    return elapsed


def measure(
    engine: Any, case: Case, *, vocab_size: int, repeats: int
) -> dict[str, Any]:
    """A step's time: of `steps` tokens more than one, in pairs of runs."""

    def run(new_tokens: int) -> float:
        return seconds(engine, case, new_tokens=new_tokens, vocab_size=vocab_size)

    run(case.steps + 1)  # compiles, and leaves the prompts in the cache
    run(1)
    pairs = [(run(1), run(case.steps + 1)) for _ in range(repeats)]
    steps = [(whole - first) * 1e3 / case.steps for first, whole in pairs]
    ms = statistics.median(steps)
    return {
        "batch": case.batch,
        "context": case.context,
        "ms_per_step": round(ms, 3),
        "tokens_per_s": round(case.batch * 1e3 / ms, 1),
        "spread": round((max(steps) - min(steps)) / ms, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="1x1024,8x1024,64x1024")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    needs.packages("sgl_jax")
    if not options.tiny:
        needs.gpu(instead="`--tiny` shows on a CPU that it runs", apart=True)
    config = LLAMA_3_8B | (TINY if options.tiny else {})
    cases = parse_cases(options.cases, steps=options.steps)
    out = options.out or results.RESULTS / results.device_slug() / "sgl_jax.json"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        for backend in options.backends.split(","):
            device = "cpu" if options.tiny else "cuda"
            start = time.perf_counter()
            engine = engine_of(folder, cases, backend=backend, device=device)
            print(
                f"{backend}: {time.perf_counter() - start:.1f} s to start", flush=True
            )
            for case in cases:
                row = measure(
                    engine,
                    case,
                    vocab_size=config["vocab_size"],
                    repeats=options.repeats,
                )
                rows.append({"backend": backend, **row, **results.provenance()})
                print(rows[-1], flush=True)
                results.write(out, rows)
            engine.shutdown()
            # sgl-jax holds on to its weights and its cache, whose memory the next one
            # needs. What is small may be constants that both share.
            for array in jax.live_arrays():
                if array.nbytes > SMALL:
                    array.delete()


if __name__ == "__main__":
    main()
