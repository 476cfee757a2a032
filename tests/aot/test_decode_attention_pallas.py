"""The Pallas kernel of `decode_attention`, compiled for an H200."""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.kernels.cases import Case
from fdjax.kernels.decode_attention import OP, UnifiedMax, cases, decode_attention
from fdjax.kernels.decode_attention.pallas import attend_with_scores
from fdjax.notation import Array
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

WIDE = UnifiedMax(0.0, -40.0, 40.0)
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unified", [WIDE, None], ids=["unified", "synchronised"])
def test_no_kernel_spills(
    name: str, unified: UnifiedMax | None, assembled: pathlib.Path
):
    case = next(c for c in cases.CASES if c.name == name)
    if unified is None and case.args[0].dtype == jnp.float16:
        pytest.skip("float16 has one kernel for both schemes; it is assembled once")
    with OP.using("pallas"):
        compile_for_h200(_call(case, unified), *_operands(case))
    spills = _spills(assembled)
    assert spills
    assert not any(spills.values()), spills


def test_a_score_function_of_ones_own_compiles():
    case = next(c for c in cases.CASES if c.name == "llama3_8b")

    def near(scores: Array, query: Array, keys: Array, reach: Array) -> Array:
        return jnp.where((query - keys).astype(jnp.float32) < reach, scores, -1e30)

    def call(*operands: Array) -> Array:
        return attend_with_scores(*operands, layer=0, scale=0.1, score=near)[0]

    reach = jax.ShapeDtypeStruct((32,), jnp.float32)
    text = compile_for_h200(call, *case.args[:4], reach).as_text()
    assert text is not None
    assert "mosaic_gpu" in text


def _operands(case: Case) -> tuple[Any, ...]:
    return case.args if case.args[4].shape[0] else case.args[:4]


def _call(case: Case, unified: UnifiedMax | None) -> Any:
    return lambda *operands: decode_attention(*operands, **case.kwargs, unified=unified)
