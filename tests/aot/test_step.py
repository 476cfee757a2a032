"""The decode step and prefill of Llama-3-8B, compiled whole for an H200."""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate import steps
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens, extend_rows
from fdjax.generate.sampling_state import SamplingProgress
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache
from fdjax.kernels.shared_prefix import plan_prefixes, plan_prompts
from fdjax.layers import beam_batch
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.program import OP
from fdjax.notation import Array
from fdjax.serve.setup import MAX_BATCHED_TOKENS
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
BATCH, WIDTH, PAGE_SIZE, NUM_PAGES, PROMPT = 64, 80, 16, 5120, 128
MANY = 256  # rows, more than the GEMMs of the package take
TOKENS = 8 * PROMPT
WHOLE = 395_056  # of a prompt in one call: see benchmarks/memory_one_call.py
LARGEST = MAX_BATCHED_TOKENS["gpu"]
TOKEN_BYTES = 45_056  # of the three buffers, see docs/layer-program.md
MIB = 2**20
ITEM_BYTES = {"bf16": 2, "s32": 4, "u8": 1}


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _mixed(
    model: Decoder,
    kv: KVCache,
    tokens: Array,
    lengths: Array,
    last: Array,
    table: Array,
) -> tuple[Array, KVCache]:
    sampling = SamplingProgress(lengths, lengths, None, None)
    progress = GenerationProgress(kv, lengths, last, sampling, table=table)
    pages = RowPages(jnp.zeros((3, 0), jnp.int32), lengths, table.shape[1])
    call = RowTokens(tokens, lengths, lengths, lengths, lengths > 0, pages)
    progress, hidden = extend_rows(model, progress, call, mixed=True)
    return hidden, progress.kv


def _beams(
    model: Decoder,
    kv: KVCache,
    tokens: Array,
    lengths: Array,
    table: Array,
    beams: BeamView,
) -> tuple[Array, KVCache]:
    batch = beam_batch(tokens, lengths, table, beams, page_size=PAGE_SIZE)
    hidden, kv, _ = model(kv, batch)
    return model.logits(hidden), kv


def _structs(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of Llama-3-8B, and the shapes that it is compiled for."""

    function: Callable[..., Any]
    tokens: int
    operands: tuple[Any, ...]
    unified: UnifiedMax | None = None
    decodes: bool = True
    num_pages: int = NUM_PAGES


ONE, ROWS, TABLE = _int32(1), _int32(BATCH), _int32(BATCH, WIDTH)
HEADS = {"num_kv_heads": 8, "group": 4}
PREFIXES = _structs(plan_prefixes((), rows=BATCH, **HEADS))
# Eight groups of eight beams, 1,024 tokens of prompt, and up to 128 of their own.
PROMPTS = _structs(plan_prompts([1024] * 8, width=8, **HEADS))
BEAMS = jax.eval_shape(BeamView, _int32(8, 64), _int32(8), _int32(BATCH, 128), PROMPTS)
SEPARATE = dataclasses.replace(BEAMS, prefixes=None)
STEPS = {
    # 64 rows with room for 1,280 tokens each.
    "decode": Step(steps.decode, BATCH, (ROWS, ROWS, TABLE)),
    # With the asynchronous softmax, counting what leaves its bounds.
    "counted": Step(
        Decoder.decode,
        BATCH,
        (ROWS, ROWS, TABLE),
        unified=UnifiedMax(0.0, -20.0, 20.0),
    ),
    "many_rows": Step(
        steps.decode, MANY, (_int32(MANY), _int32(MANY), _int32(MANY, WIDTH))
    ),
    # Rows that share pages, which are read once for all of them.
    "shared": Step(Decoder.decode, BATCH, (ROWS, ROWS, TABLE, PREFIXES)),
    "beams": Step(_beams, BATCH, (ROWS, ROWS, _int32(BATCH, 8), BEAMS)),
    # Likewise, and each beam reads its prompt.
    "separate": Step(_beams, BATCH, (ROWS, ROWS, _int32(BATCH, 8), SEPARATE)),
    # Eight prompts of 128 tokens.
    "prefill": Step(
        steps.prefill,
        TOKENS,
        (_int32(8, PROMPT), _int32(8), _int32(8, PROMPT // PAGE_SIZE)),
        decodes=False,
    ),
    # Tokens of up to 64 prompts, as an engine prefills.
    "extend": Step(
        steps.extend, TOKENS, (_int32(TOKENS), ROWS, TABLE, ROWS), decodes=False
    ),
    # Tokens of prompts, and one each of rows that decode, 64 rows in all.
    "mixed": Step(_mixed, TOKENS, (_int32(TOKENS), ROWS, ROWS, TABLE)),
    # The same in the largest step of an engine that is given no other.
    "largest": Step(_mixed, LARGEST, (_int32(LARGEST), ROWS, ROWS, TABLE)),
    "whole": Step(
        _mixed,
        WHOLE,
        (_int32(WHOLE), ONE, ONE, _int32(1, WHOLE // PAGE_SIZE)),
        num_pages=33_181,
    ),
}
LAYERED = ("decode", "prefill", "mixed")  # compiled layer by layer too
GEMM = re.compile(r" dot\(|__cublas|__triton_gemm")
ATTENTION = ("decode_attention", "prefill_attention")
each_step = pytest.mark.parametrize("name", STEPS)


class Compiled(NamedTuple):
    """A compiled step, its KV array's layout, and what XLA runs for it, a line each."""

    program: jax.stages.Compiled
    layout: KVLayout
    thunks: list[str]


@functools.cache
def _compiled(name: str, *, layers: bool = False, lent: bool = False) -> Compiled:
    """A step; with `layers` layer by layer, as where one call does not serve it.

    With `lent` the KV array's last pages are the step's.
    """
    step = STEPS[name]
    config = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    config = dataclasses.replace(config, unified=step.unified)
    layout = config.kv_layout(
        num_pages=step.num_pages, page_size=PAGE_SIZE, dtype=jnp.bfloat16
    )
    layout = dataclasses.replace(layout, lent=lent)
    kv = jax.eval_shape(layout.allocate)
    model = Decoder(config, jnp.bfloat16)
    with (
        tempfile.TemporaryDirectory() as dump,
        OP.using("reference") if layers else contextlib.nullcontext(),
    ):
        compiled = compile_for_h200(
            step.function,
            model,
            kv,
            *step.operands,
            donate_argnums=(1,),
            compiler_options={"xla_dump_to": dump, "xla_dump_hlo_as_text": True},
        )
        (thunks,) = pathlib.Path(dump).glob("*.thunk_sequence_after_thunk_passes.txt")
        return Compiled(compiled, layout, thunks.read_text().splitlines())


@pytest.fixture(scope="module", autouse=True)
def programs_are_dropped() -> Iterator[None]:
    """With the module's last test."""
    yield
    _compiled.cache_clear()


def _hlo(compiled: jax.stages.Compiled) -> str:
    """The optimized program."""
    text = compiled.as_text()
    assert text is not None
    return text


def _memory(compiled: jax.stages.Compiled) -> Any:
    """What XLA has planned."""
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis


def _temporaries(compiled: jax.stages.Compiled) -> int:
    """Bytes of XLA's temporaries."""
    return _memory(compiled).temp_size_in_bytes


def _copies(compiled: jax.stages.Compiled, layout: KVLayout) -> list[str]:
    """Copies of an array of the KV array's shape in the optimized program."""
    dims = ",".join(map(str, layout.shape))
    copy = re.compile(rf"= bf16\[{dims}\]\S* copy(-start)?\(")
    return [line.strip() for line in _hlo(compiled).splitlines() if copy.search(line)]


def _calls(compiled: jax.stages.Compiled, operation: str) -> list[str]:
    """Calls of one of our handlers in the optimized program."""
    target = f'custom_call_target="fdjax.{operation}.'
    return [line for line in _hlo(compiled).splitlines() if target in line]


def _result_bytes(call: str) -> list[int]:
    """Of each result of a call."""
    results = call.partition(" custom-call(")[0].partition(" = ")[2]
    shapes = re.findall(r"(\w+)\[([\d,]*)\]", results)
    return [
        ITEM_BYTES[dtype] * math.prod(map(int, dims.split(",")))
        for dtype, dims in shapes
    ]


@pytest.mark.parametrize(
    ("name", "layers"),
    [*((name, False) for name in STEPS), *((name, True) for name in LAYERED)],
)
def test_the_kv_array_is_updated_in_place(name: str, layers: bool):
    compiled, layout, _ = _compiled(name, layers=layers)
    assert _copies(compiled, layout) == []
    assert _memory(compiled).alias_size_in_bytes == layout.nbytes


@each_step
def test_a_step_is_one_call(name: str):
    compiled, _, _ = _compiled(name)
    (call,) = _calls(compiled, "layer_program")
    assert "output_to_operand_aliasing={{0}: (0, {})}" in call
    plans = 1 if STEPS[name].decodes else 0
    assert len(_calls(compiled, "attention_plan")) == plans, "one for all layers"
    for inside in ("embedding", "add_norm", "rope_kv_write", *ATTENTION):
        assert _calls(compiled, inside) == []


@pytest.mark.parametrize(
    ("name", "layers"),
    [*((name, False) for name in STEPS), *((name, True) for name in LAYERED)],
)
def test_a_step_is_one_graph(name: str, layers: bool):
    """Else the host would launch each kernel of a chain: XLA captures from five on.

    Of an engine's programs "mixed" has the fewest: neither a head nor sampling.
    """
    graph, *inside = filter(None, _compiled(name, layers=layers).thunks)
    assert "kCommandBuffer [source | sink]" in graph
    assert all(line.startswith("    ") for line in inside)
    calls = sum("kCustomCall" in line for line in inside)
    assert calls >= (32 * 3 if layers else 1)


@each_step
def test_no_gemm_is_left_for_xla_to_time(name: str):
    assert not GEMM.search(_hlo(_compiled(name)[0]))


def test_gemms_of_layers_one_by_one_are_found():
    assert GEMM.search(_hlo(_compiled("prefill", layers=True)[0]))


@each_step
def test_a_step_keeps_little_beside_what_its_call_needs(name: str):
    compiled, _, _ = _compiled(name)
    (call,) = _calls(compiled, "layer_program")
    _, hidden, decoded, extended, first, second, third, *others = _result_bytes(call)
    buffers = first + second + third
    assert buffers == TOKEN_BYTES * STEPS[name].tokens
    # Logits are a result of the program, whose memory may be lent to these.
    of_the_call = buffers + hidden + decoded + extended + sum(others)
    places = 4 * 4 * STEPS[name].tokens  # their ids, positions and slots
    assert _temporaries(compiled) < of_the_call + places + MIB


@each_step
def test_a_step_in_lent_pages_keeps_next_to_nothing_beside_them(name: str):
    compiled, layout, _ = _compiled(name, lent=True)
    (call,) = _calls(compiled, "layer_program")
    kv, _, _, _, *blocks = _result_bytes(call)
    assert kv == layout.nbytes
    assert sum(blocks) == 0
    assert _temporaries(compiled) < 8 * MIB
    assert _copies(compiled, layout) == []


def test_layers_one_by_one_write_their_pages_in_place():
    compiled, _, _ = _compiled("decode", layers=True)
    calls = _calls(compiled, "rope_kv_write")
    assert len(calls) == 32
    assert all("output_to_operand_aliasing={{1}: (1, {})}" in line for line in calls)
    assert len(_calls(compiled, "decode_attention")) == 32
    assert _temporaries(compiled) < 16 * MIB


def test_prefill_by_layers_keeps_no_score_matrix():
    compiled, _, _ = _compiled("prefill", layers=True)
    assert _hlo(compiled).count("__cudnn$fmhaSoftmax") == 32
    assert _temporaries(compiled) < 256 * MIB


def test_each_kind_of_rows_has_its_attention():
    compiled, _, _ = _compiled("mixed", layers=True)
    for operation in ("rope_kv_write", *ATTENTION):
        assert len(_calls(compiled, operation)) == 32
    assert len(_calls(compiled, "attention_plan")) == 1, "one for all layers"
    assert _temporaries(compiled) < 100 * MIB
