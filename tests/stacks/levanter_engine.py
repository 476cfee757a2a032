"""Tokens of Levanter's engine with fdjax and without, in a process of its own.

Prints JSON: for each model what both generate, with log-probabilities; how far apart
their logits and caches are after one call of `decode`; how often the cache is copied in
the compiled loop; and what is refused. `... devices` compares on two devices instead.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import dataclasses
import re
from typing import Any

import haliax as hax  # pyright: ignore[reportMissingImports]  (installed where this runs)
import jax
import jax.numpy as jnp
import numpy as np
from levanter.inference import (  # pyright: ignore[reportMissingImports]  (as above)
    engine as inference,
)
from levanter.inference.jit_scheduler import (  # pyright: ignore[reportMissingImports]  (as above)
    SeqDecodingParams,
)
from levanter.models.gemma import (  # pyright: ignore[reportMissingImports]  (as above)
    GemmaConfig,
)
from levanter.models.llama import (  # pyright: ignore[reportMissingImports]  (as above)
    LlamaConfig,
)
from levanter.models.qwen import (  # pyright: ignore[reportMissingImports]  (as above)
    Qwen3Config,
)

from fdjax.errors import Unsupported
from fdjax.integrations.levanter import with_fdjax

# Prompts of several pages, of parts of pages, and of less; the last has two samples.
PROMPTS = [[5 + i % 50 for i in range(length)] for length in (40, 7, 33, 3)]
SAMPLES, NEW_TOKENS, PAGE_SIZE = (1, 1, 1, 2), 24, 8
CONFIG = inference.InferenceEngineConfig(
    max_seq_len=96,
    max_seqs=6,
    page_size=PAGE_SIZE,
    max_pages=48,
    compute_dtype=jnp.float32,
    max_rounds=8,
    max_stop_seqs=0,
)
SIZES: dict[str, Any] = {
    "max_seq_len": 96,
    "hidden_dim": 64,
    "intermediate_dim": 96,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "gradient_checkpointing": False,
}
VOCAB = hax.Axis("vocab", 128)


def built(config: Any) -> Any:
    return config.build(VOCAB, key=jax.random.key(0))


def requests() -> list[Any]:
    """Greedy ones, and of the last prompt two draws."""
    return [
        inference.Request(
            prompt,
            number,
            SeqDecodingParams(
                max_num_tokens=jnp.asarray(len(prompt) + NEW_TOKENS, jnp.int32),
                stop_tokens=None,
                temperature=jnp.asarray(float(samples > 1), jnp.float32),
                top_p=jnp.asarray(1.0, jnp.float32),
                key=jax.random.PRNGKey(number),
            ),
            samples,
        )
        for number, (prompt, samples) in enumerate(zip(PROMPTS, SAMPLES, strict=True))
    ]


def engine_of(model: Any) -> Any:
    return inference.InferenceEngine.from_model_with_config(model, None, CONFIG)


def generated(engine: Any) -> dict[str, Any]:
    result = engine.generate(requests())
    return {"tokens": result.tokens, "logprobs": result.logprobs}


def after_prompts(model: Any) -> tuple[Any, list[Any]]:
    """Logits and caches of all prompts, in one call that begins with empty pages."""
    engine = engine_of(model)
    slots = [row for row, prompt in enumerate(PROMPTS) for _ in prompt]
    positions = [at for prompt in PROMPTS for at in range(len(prompt))]

    def named(numbers: list[int]) -> Any:
        return hax.named(jnp.asarray(numbers, jnp.int32), "position")

    state = engine.gen_state.decode_state
    for _ in PROMPTS:
        state, _ = state.reserve_slot()
    _, batch = state.allocate_for_seq(
        token_slot_ids=named(slots), token_pos_ids=named(positions)
    )
    tokens = named([token for prompt in PROMPTS for token in prompt])
    logits, caches = hax.named_jit(type(model).decode)(
        model, tokens, engine.gen_state.cache, batch, named(positions)
    )
    return logits.array, [cache.kv_pages.array for cache in caches]


def furthest(ours: Any, theirs: Any) -> float:
    """The largest relative error, as the tests' rule of tolerance has it."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    arrays = [(np.asarray(one), np.asarray(other)) for one, other in pairs]
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in arrays)


def copies(engine: Any) -> int:
    """Copies of a layer's cache in the compiled loop of decoding."""
    compiled = inference._run_generation_loop.lower(
        engine.gen_state, engine.model, engine.sampler, CONFIG.max_seqs, 8
    ).compile()
    cache = next(iter(engine.gen_state.cache)).kv_pages.array
    shape = f"f32[{','.join(map(str, cache.shape))}]"
    text = compiled.as_text()
    assert shape in text
    lines = [line for line in text.splitlines() if re.search(r" copy(-start)?\(", line)]
    return sum(shape in re.split(r" copy(-start)?\(", line)[0] for line in lines)


def compared(config: Any) -> dict[str, Any]:
    theirs, ours = built(config), with_fdjax(built(config))
    engine = engine_of(ours)
    first = generated(engine)
    traces = inference._run_generation_loop._cache_size()
    engine.model = with_fdjax(built(config))  # as after a step of training
    again = generated(engine)
    (logits, caches), (expected, held) = (after_prompts(m) for m in (ours, theirs))
    return {
        "ours": first,
        "theirs": generated(engine_of(theirs)),
        "again": first == again,
        "new programs": inference._run_generation_loop._cache_size() - traces - 1,
        "logits": furthest(logits, expected),
        "caches": furthest(caches, held),
        "copies": copies(engine),
    }


def refusals() -> dict[str, str]:
    llama = built(LlamaConfig(**SIZES))

    def attending(**changed: Any) -> Any:
        layers = llama.transformer.layers
        attention = layers.stacked.self_attn
        other = type(attention).init(
            dataclasses.replace(attention.config, **changed), key=jax.random.key(1)
        )
        return hax.tree_util.tree_map(
            lambda leaf: other if isinstance(leaf, type(attention)) else leaf,
            llama,
            is_leaf=lambda leaf: isinstance(leaf, type(attention)),
        )

    calls = {
        "gated": lambda: with_fdjax(attending(gated="headwise")),
        "window": lambda: with_fdjax(attending(sliding_window=16)),
        "no paged decoding": lambda: with_fdjax(built(GemmaConfig(**SIZES))),
        "types": lambda: inference.InferenceEngine.from_model_with_config(
            with_fdjax(llama),
            None,
            dataclasses.replace(CONFIG, compute_dtype=jnp.bfloat16),
        ).generate(requests()),
    }
    said: dict[str, str] = {}
    for name, call in calls.items():
        try:
            call()
        except Unsupported as error:
            said[name] = str(error)
    return said


def on_two_devices() -> dict[str, Any]:
    """Key/value heads divided between them, as Levanter's axis mapping says."""
    model = with_fdjax(built(LlamaConfig(**SIZES)))
    expected, held = after_prompts(model)
    mesh = jax.make_mesh((2,), ("model",))
    with hax.partitioning.set_mesh(mesh), hax.axis_mapping({"kv_head": "model"}):
        logits, caches = after_prompts(hax.shard(model))
    return {
        "heads of a device": caches[0].addressable_shards[0].data.shape[2],
        "logits": furthest(logits, expected),
        "caches": furthest(caches, held),
    }


def main() -> None:
    """Prints what the first lines say."""
    if sys.argv[1:] == ["devices"]:
        print(json.dumps(on_two_devices()))
        return
    found: dict[str, Any] = {
        "llama": compared(LlamaConfig(**SIZES)),
        "qwen3": compared(Qwen3Config(**SIZES, tie_word_embeddings=True)),
        "refused": refusals(),
    }
    twice = with_fdjax(with_fdjax(built(LlamaConfig(**SIZES))))
    found["class"] = type(twice.transformer.layers.stacked.self_attn).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
