"""What a plan counts beside the KV array, and what XLA takes for an H200."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.engine.buckets import PREFILL_ROWS, SCORED_TOKENS
from fdjax.engine.workspace import pooled_bytes, scoring_bytes
from fdjax.generate.pooled_states import pool_tokens
from fdjax.generate.prompt_scores import score_tokens
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
MODELS = ("llama3-8b", "gpt-j-6b", "gemma2-9b")
PAGE_SIZE, WIDTH = 16, 512
DTYPE = jnp.bfloat16
# Ids, places and what is added up by prompt, and what goes to the host.
SMALL = 4 * 2**20


def _config(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _beside(function: Callable[..., Any], config: ModelConfig, *operands: Any) -> int:
    """Bytes that a program over a lent KV array has beside its operands."""
    layout = config.kv_layout(num_pages=5120, page_size=PAGE_SIZE, dtype=DTYPE)
    kv = jax.eval_shape(dataclasses.replace(layout, lent=True).allocate)
    model = Decoder(config, DTYPE)
    compiled = compile_for_h200(function, model, kv, *operands, donate_argnums=(1,))
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == layout.nbytes
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + results


@pytest.mark.parametrize("num_tokens", [8192, 32_768])
@pytest.mark.parametrize("name", MODELS)
def test_pooling_takes_the_states_once(name: str, num_tokens: int):
    """In 16 bits: what adds them up in float32 keeps no array of it."""
    config, prompts = _config(name), _ints(PREFILL_ROWS)
    table = _ints(PREFILL_ROWS, WIDTH)
    beside = _beside(pool_tokens, config, _ints(num_tokens), prompts, table, prompts)
    counted = pooled_bytes(config, dtype=DTYPE, num_tokens=num_tokens)
    assert counted <= beside <= counted + SMALL


@pytest.mark.parametrize("name", MODELS)
def test_scoring_takes_no_more_than_is_counted(name: str):
    config, tokens, one = _config(name), _ints(SCORED_TOKENS), _ints(1)
    operands = tokens, tokens, one, _ints(1, WIDTH), one
    assert _beside(score_tokens, config, *operands) <= scoring_bytes(config) + SMALL
