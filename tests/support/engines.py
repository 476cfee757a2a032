"""Small engines, and requests run to their ends."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fdjax.engine.buckets import Buckets
from fdjax.engine.engine import Engine
from fdjax.engine.runs import Runs
from fdjax.generate.params import SamplingParams
from fdjax.memory.kv import KVLayout
from fdjax.memory.plan import MemoryPlan
from fdjax.models import Decoder, ModelConfig, load, random_weights
from fdjax.models.checkpoint import read_config

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

# Ragged on purpose: one token, one page to the slot, and a page begun.
PROMPTS = ([5], [1, 9, 33, 77, 12, 8, 90, 41], [3, 100, 60, 7, 21, 22, 5, 64, 19, 2, 4])


@functools.cache
def tiny_model(name: str = "llama", *, batch_invariant: bool = False) -> Decoder:
    """The random model of a fixture, in float32."""
    config = ModelConfig.from_hf(read_config(FIXTURES / name))
    config = dataclasses.replace(config, batch_invariant=batch_invariant)
    return load(FIXTURES / name, dtype=jnp.float32, config=config)


@functools.cache
def shallow_model() -> Decoder:
    """The same with one layer, which compiles faster, and other weights."""
    config = tiny_model().config
    config = dataclasses.replace(config, layers=config.layers[:1])
    return random_weights(config, dtype=jnp.float32, seed=0)


def layout_of(model: Decoder, *, num_pages: int, page_size: int) -> KVLayout:
    """The KV array of a model."""
    return model.config.kv_layout(
        num_pages=num_pages, page_size=page_size, dtype=jnp.float32
    )


def tiny_engine(
    model: Decoder | None = None,
    *,
    max_model_len: int = 32,
    max_num_seqs: int = 4,
    page_size: int = 8,
    num_pages: int | None = None,
    steps_per_launch: int = 8,
    max_batched_tokens: int = 2048,
    **options: Any,
) -> Engine:
    """An engine of a tiny model, its memory given and not planned.

    Args:
        model: `tiny_model` by default.
        max_model_len: longest sequence, in tokens.
        max_num_seqs: most rows.
        page_size: tokens of a page.
        num_pages: of the KV array; room for every row by default.
        steps_per_launch: decode steps of one call.
        max_batched_tokens: of one prefill call.
        options: of `Engine`.
    """
    model = model or tiny_model()
    widest = -(-max_model_len // page_size)
    layout = layout_of(
        model, num_pages=num_pages or widest * max_num_seqs, page_size=page_size
    )
    plan = MemoryPlan(
        budget_bytes=layout.nbytes,
        weight_bytes=0,
        workspace_bytes=0,
        layout=layout,
        page_workspace_bytes=0,
        max_model_len=max_model_len,
    )
    buckets = Buckets.of(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        page_size=page_size,
        max_batched_tokens=max_batched_tokens,
    )
    return Engine(model, plan, buckets, steps_per_launch=steps_per_launch, **options)


def run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
) -> list[list[int]]:
    """The tokens that continue each prompt."""
    many = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    requests = [
        engine.request(index, prompt, one)
        for index, (prompt, one) in enumerate(zip(prompts, many, strict=True))
    ]
    outputs: list[list[int]] = [[] for _ in prompts]
    runs = Runs(engine)
    for _, increment in runs.follow(runs.add(requests)):
        outputs[increment.index] += increment.token_ids
    return outputs
