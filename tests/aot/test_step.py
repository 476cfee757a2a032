"""The decode step and prefill of Llama-3-8B, compiled whole for an H200."""

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate import steps
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
BATCH, WIDTH, PAGE_SIZE, NUM_PAGES, PROMPT = 64, 80, 16, 5120, 128
MIB = 2**20


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _compile(
    step: Callable[..., Any], *operands: jax.ShapeDtypeStruct
) -> tuple[jax.stages.Compiled, KVLayout]:
    config = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    attention = config.attention
    layout = KVLayout(
        NUM_PAGES,
        config.num_layers,
        PAGE_SIZE,
        attention.num_kv_heads,
        attention.head_dim,
        jnp.bfloat16,
    )
    kv = jax.ShapeDtypeStruct(layout.shape, layout.dtype)
    model = Decoder(config, jnp.bfloat16)
    compiled = compile_for_h200(step, model, kv, *operands, donate_argnums=(1,))
    return compiled, layout


@pytest.fixture(scope="module")
def decode() -> tuple[jax.stages.Compiled, KVLayout]:
    """One decode step of 64 rows with room for 1,280 tokens each."""
    return _compile(steps.decode, _int32(BATCH), _int32(BATCH), _int32(BATCH, WIDTH))


@pytest.fixture(scope="module")
def prefill() -> tuple[jax.stages.Compiled, KVLayout]:
    """Eight prompts of 128 tokens."""
    return _compile(
        steps.prefill, _int32(8, PROMPT), _int32(8), _int32(8, PROMPT // PAGE_SIZE)
    )


def _hlo(compiled: jax.stages.Compiled) -> str:
    """The optimized program."""
    text = compiled.as_text()
    assert text is not None
    return text


def _temporaries(compiled: jax.stages.Compiled) -> int:
    """Bytes of XLA's temporaries."""
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def _copies(compiled: jax.stages.Compiled, layout: KVLayout) -> list[str]:
    """Copies of an array of the KV array's shape in the optimized program."""
    dims = ",".join(map(str, layout.shape))
    copy = re.compile(rf"= bf16\[{dims}\]\S* copy(-start)?\(")
    return [line.strip() for line in _hlo(compiled).splitlines() if copy.search(line)]


@pytest.mark.parametrize("program", ["decode", "prefill"])
def test_the_kv_array_is_updated_in_place(program: str, request: pytest.FixtureRequest):
    compiled, layout = request.getfixturevalue(program)
    assert _copies(compiled, layout) == []
    assert compiled.memory_analysis().alias_size_in_bytes == layout.nbytes


def test_decode_temporaries_stay_below_two_gathered_layers(
    decode: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, layout = decode
    tokens = BATCH * WIDTH * PAGE_SIZE
    # Keys and values of one layer, gathered in bfloat16 and widened to float32, for
    # two layers in flight; a third of it is the rest (logits, activations).
    gathered = 2 * tokens * layout.num_kv_heads * layout.head_dim * (2 + 4)
    assert _temporaries(compiled) < 2 * gathered


def test_prefill_keeps_no_score_matrix(
    prefill: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = prefill
    assert _hlo(compiled).count("__cudnn$fmhaSoftmax") == 32
    assert _temporaries(compiled) < 256 * MIB


def test_every_layer_writes_its_pages_by_one_aliasing_call(
    decode: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = decode
    calls = [
        line
        for line in _hlo(compiled).splitlines()
        if 'custom_call_target="fdjax.rope_kv_write' in line
    ]
    assert len(calls) == 32
    assert all("output_to_operand_aliasing={{1}: (1, {})}" in line for line in calls)
