"""The decode step and prefill of Llama-3-8B, compiled whole for an H200."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate import steps
from fdjax.generate.loop import GenerationProgress
from fdjax.generate.rows import RowTokens, extend_rows
from fdjax.generate.sampling_state import SamplingProgress
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.decoder_stack import OP
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.notation import Array
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
BATCH, WIDTH, PAGE_SIZE, NUM_PAGES, PROMPT = 64, 80, 16, 5120, 128
MANY = 256  # rows, more than the GEMM kernels of the package take
MIB = 2**20


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _compile(
    step: Callable[..., Any],
    *operands: jax.ShapeDtypeStruct,
    unified: UnifiedMax | None = None,
) -> tuple[jax.stages.Compiled, KVLayout]:
    config = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    config = dataclasses.replace(config, unified=unified)
    layout = config.kv_layout(
        num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=jnp.bfloat16
    )
    kv = jax.eval_shape(layout.allocate)
    model = Decoder(config, jnp.bfloat16)
    compiled = compile_for_h200(step, model, kv, *operands, donate_argnums=(1,))
    return compiled, layout


@pytest.fixture(scope="module")
def decode() -> tuple[jax.stages.Compiled, KVLayout]:
    """One decode step of 64 rows with room for 1,280 tokens each."""
    return _compile(steps.decode, _int32(BATCH), _int32(BATCH), _int32(BATCH, WIDTH))


@pytest.fixture(scope="module")
def counted() -> tuple[jax.stages.Compiled, KVLayout]:
    """The same step with the asynchronous softmax, counting what leaves its bounds."""
    return _compile(
        steps.decode_counted,
        _int32(BATCH),
        _int32(BATCH),
        _int32(BATCH, WIDTH),
        unified=UnifiedMax(0.0, -20.0, 20.0),
    )


@pytest.fixture(scope="module")
def many_rows() -> tuple[jax.stages.Compiled, KVLayout]:
    """One decode step of 256 rows."""
    rows = _int32(MANY)
    return _compile(steps.decode, rows, rows, _int32(MANY, WIDTH))


@pytest.fixture(scope="module")
def layers() -> tuple[jax.stages.Compiled, KVLayout]:
    """The same step, layer by layer, as models of another kind run it."""
    with OP.using("reference"):
        return _compile(
            steps.decode, _int32(BATCH), _int32(BATCH), _int32(BATCH, WIDTH)
        )


@pytest.fixture(scope="module")
def prefill() -> tuple[jax.stages.Compiled, KVLayout]:
    """Eight prompts of 128 tokens."""
    return _compile(
        steps.prefill, _int32(8, PROMPT), _int32(8), _int32(8, PROMPT // PAGE_SIZE)
    )


@pytest.fixture(scope="module")
def extend() -> tuple[jax.stages.Compiled, KVLayout]:
    """1,024 tokens of up to 64 prompts, as an engine prefills."""
    return _compile(
        steps.extend,
        _int32(8 * PROMPT),
        _int32(BATCH),
        _int32(BATCH, WIDTH),
        _int32(BATCH),
    )


@pytest.fixture(scope="module")
def mixed() -> tuple[jax.stages.Compiled, KVLayout]:
    """1,024 tokens: of prompts, and one each of rows that decode, 64 rows in all."""
    rows = _int32(BATCH)
    return _compile(_mixed, _int32(8 * PROMPT), rows, rows, _int32(BATCH, WIDTH))


def _mixed(
    model: Decoder,
    kv: KVCache,
    tokens: Array,
    lengths: Array,
    last: Array,
    table: Array,
) -> tuple[Array, KVCache]:
    sampling = SamplingProgress(lengths, lengths, None, None)
    progress = GenerationProgress(kv, lengths, last, sampling)
    call = RowTokens(tokens, lengths, lengths, lengths, lengths > 0, table)
    progress, hidden = extend_rows(model, progress, call, mixed=True)
    return hidden, progress.kv


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


@pytest.mark.parametrize(
    "program", ["decode", "counted", "many_rows", "prefill", "extend", "mixed"]
)
def test_the_kv_array_is_updated_in_place(program: str, request: pytest.FixtureRequest):
    compiled, layout = request.getfixturevalue(program)
    assert _copies(compiled, layout) == []
    assert compiled.memory_analysis().alias_size_in_bytes == layout.nbytes


def test_decode_keeps_activations_only(
    decode: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = decode
    # A row of everything a layer makes, for 64 rows: 3.8 MiB.
    assert _temporaries(compiled) < 8 * MIB


def test_many_rows_keep_activations_of_one_layer(
    many_rows: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = many_rows
    # Logits are a result. A layer's gate and up columns are 14 MiB, all else as much.
    assert _temporaries(compiled) < 48 * MIB


def test_prefill_keeps_no_score_matrix(
    prefill: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = prefill
    assert _hlo(compiled).count("__cudnn$fmhaSoftmax") == 32
    assert _temporaries(compiled) < 256 * MIB


def test_ragged_prefill_reads_pages_where_they_lie(
    extend: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = extend
    assert len(_calls(compiled, "prefill_attention")) == 32
    # It is 64 MiB: logits of 64 rows, 31 MiB, and the widest of a layer's activations.
    assert _temporaries(compiled) < 100 * MIB


def test_each_kind_of_rows_has_its_attention(
    mixed: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, _ = mixed
    for operation in ("rope_kv_write", "prefill_attention", "decode_attention"):
        assert len(_calls(compiled, operation)) == 32
    assert len(_calls(compiled, "attention_plan")) == 1, "one for all layers"
    assert _temporaries(compiled) < 100 * MIB


@pytest.mark.parametrize("program", ["decode", "counted", "many_rows"])
def test_a_step_is_one_call_of_the_stack(program: str, request: pytest.FixtureRequest):
    compiled, _ = request.getfixturevalue(program)
    assert len(_calls(compiled, "embedding")) == 1
    calls = _calls(compiled, "decoder_stack")
    assert len(calls) == 1
    assert "output_to_operand_aliasing={{1}: (1, {})}" in calls[0]


def test_layers_one_by_one_write_their_pages_in_place(
    layers: tuple[jax.stages.Compiled, KVLayout],
):
    compiled, layout = layers
    calls = _calls(compiled, "rope_kv_write")
    assert len(calls) == 32
    assert all("output_to_operand_aliasing={{1}: (1, {})}" in line for line in calls)
    assert len(_calls(compiled, "decode_attention")) == 32
    assert _copies(compiled, layout) == []
    assert _temporaries(compiled) < 16 * MIB


def _calls(compiled: jax.stages.Compiled, operation: str) -> list[str]:
    """Calls of one of our handlers in the optimized program."""
    target = f'custom_call_target="fdjax.{operation}.'
    return [line for line in _hlo(compiled).splitlines() if target in line]
