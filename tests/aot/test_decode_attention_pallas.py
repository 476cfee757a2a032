"""The Pallas kernel of `decode_attention`, compiled for an H200."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from fdjax.kernels.decode_attention import OP, DecodeAttention, cases
from fdjax.kernels.decode_attention.pallas import attend_with_scores
from fdjax.notation import Array
from tests.support.aot import compile_for_h200, wheels_missing
from tests.support.decode_calls import WIDE

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

NAMES = (
    "llama3_8b_1x1024",
    "llama3_8b_256x1024",
    "llama3_8b_1x32768",
    "llama2_7b",
    "chatglm2_6b",
    "gemma2_9b",
    "wide_mqa",
    "bloom_560m",
    "mistral_window",
    "tales_5m_bfloat16",
)
# float16 has one kernel for both schemes; it is assembled once.
CALLS = [
    pytest.param(dataclasses.replace(case.call, unified=unified), id=f"{scheme}-{name}")
    for name in NAMES
    for case in cases.CASES
    for scheme, unified in (("unified", WIDE), ("synchronised", None))
    if case.name == name and not (unified is None and case.call.q.dtype == jnp.float16)
]


@pytest.fixture
def assembled(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Where the assembler says what it made of each kernel."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    return tmp_path


def _spills(folder: pathlib.Path) -> dict[str, int]:
    """Bytes that each kernel spills."""
    found: dict[str, int] = {}
    for file in folder.glob("*.ptxas"):
        text = file.read_text(errors="replace")
        stores = re.findall(r"(\d+) bytes spill stores", text)
        loads = re.findall(r"(\d+) bytes spill loads", text)
        found[file.stem] = sum(map(int, stores + loads))
        assert stores
    return found


@pytest.mark.parametrize("call", CALLS)
def test_no_kernel_spills(call: DecodeAttention, assembled: pathlib.Path):
    with OP.using("pallas"):
        compile_for_h200(OP, call)
    spills = _spills(assembled)
    assert spills
    assert not any(spills.values()), spills


def test_a_score_function_of_ones_own_compiles():
    case = next(c for c in cases.CASES if c.name == "llama3_8b")

    def near(scores: Array, query: Array, keys: Array, reach: Array) -> Array:
        return jnp.where((query - keys).astype(jnp.float32) < reach, scores, -1e30)

    def call(plain: DecodeAttention, reach: Array) -> Array:
        operands = (plain.q, plain.kv, plain.pages, reach)
        return attend_with_scores(*operands, scale=0.1, score=near)[0]

    reach = jax.ShapeDtypeStruct((32,), jnp.float32)
    text = compile_for_h200(call, case.call, reach).as_text()
    assert text is not None
    assert "mosaic_gpu" in text
