"""Numbers that stand in Python and in C++, as both sources write them.

A definition has its numbers beside it, to be read alone, and the extension exports only
what a handler asks for (`test_limits`): these are read in the sources.
"""

import re
from itertools import chain, product
from typing import Any

import pytest

from fdjax.kernels import chip, ffi
from fdjax.kernels.attention_plan import host
from fdjax.kernels.layer_program import operands
from fdjax.kernels.matmul import gemm, params
from fdjax.kernels.prefill_plan.tiles import MANTISSA_BITS, ROOT_OF_TWO
from tests.support.handlers import skip_without
from tests.support.operations import ROOT

# What is a number, and what a function returns that computes one.
_WRITTEN = (
    re.compile(r"\bconst(?:expr)? \w+ (\w+)(?:\[\w*\])?\s+=\s+([^;]+);"),
    re.compile(r"\bint (\w+)\([\w ,]*\) \{\s*(?:const [^;]+;\s*)?return ([^;]+);"),
)
_LARGER = re.compile(r"\((\w+) > (\w+) \? \1 : \2\)")


class Sources(dict[str, Any]):
    """Constants of files below `ffi`, computed when they are asked for.

    Args:
        paths: of the files; what is asked for is written once in them.
        given: those that templates and functions are given.
    """

    def __init__(self, *paths: str, **given: int) -> None:
        super().__init__(given)
        self._written: dict[str, list[str]] = {}
        for path in paths:
            text = re.sub(r"//.*", "", (ROOT / "ffi" / path).read_text())
            for name, number in chain(*(each.findall(text) for each in _WRITTEN)):
                self._written.setdefault(name, []).append(number)

    def __missing__(self, name: str) -> Any:
        (text,) = self._written[name]
        text = _LARGER.sub(r"max(\1, \2)", text)
        text = text.translate(str.maketrans("{}", "()")).replace("/", "//")
        text = re.sub(r"(stage_bytes)\(\w+\)", r"\1", text)  # of what is given
        known = {"__builtins__": {}, "max": max}
        return eval(" ".join(text.split()), known, self)


PLAN = Sources("attention_plan/kernel.cuh")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("kLeastTokens", host.LEAST_TOKENS),
        ("kBuckets", host.BUCKETS),
        ("kShares", host.SHARES),
        ("kCandidates", len(host.SHARES)),
        ("kTogether", host.TOGETHER),
        ("kLanes", host.LANES),
        ("kMostCost", host.MOST_COST),
    ],
)
def test_plans_of_attention_are_made_by_the_same_numbers(name: str, number: Any):
    assert PLAN[name] == number


def test_items_of_prompts_have_the_same_classes():
    source = Sources("prefill_plan/kernel.cuh")
    assert source["kRootOfTwo"] == ROOT_OF_TWO
    text = (ROOT / "ffi" / "prefill_plan" / "kernel.cuh").read_text()
    assert f"bits >> {MANTISSA_BITS})" in text
    assert f"bits & {2**MANTISSA_BITS - 1:#x})" in text


def test_operands_are_absent_by_the_same_number():
    assert Sources("layer_program/reader.h")["kAbsent"] == operands.ABSENT


def test_a_block_has_the_same_shared_memory():
    """What persistent GEMMs leave of it for barriers, and to align, is theirs alone."""
    of_persistent = Sources("matmul/persistent_tiles.cuh")
    assert of_persistent["kRoom"] == chip.SHARED_BYTES - 2048


@pytest.mark.parametrize("tokens", params.PADDED_M)
@pytest.mark.parametrize(("tiles", "boxes"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_flat_gemms_take_the_same_shared_memory(tiles: int, boxes: int, tokens: int):
    for tile_rows, stages in product((8, 40, 64), (1, 3, 16)):
        source = Sources(
            *("matmul/limits.h", "matmul/stage.cuh", "matmul/flat_ring.cuh"),
            kTilesOfABlock=tiles,
            kM=tokens,
            kBoxes=boxes,
            tile_rows=tile_rows,
            stages=stages,
        )
        config = params.FlatConfig(tiles, boxes, tile_rows, splits=1, stages=stages)
        assert source["bytes"] == config.shared_bytes(tokens)


@pytest.mark.parametrize("config", gemm.CONFIGS, ids=str)
def test_gemms_have_as_many_stages_as_fit(config: params.GemmConfig):
    skip_without("matmul", "cpu")

    def source(stages: int) -> Sources:
        files = ("matmul/limits.h", "matmul/stage.cuh", "matmul/gemm_ring.cuh")
        return Sources(*files, kN=config.rows, stages=stages)

    assert source(1)["kStageBytes"] == config.stage_bytes
    assert source(config.stages)["bytes"] <= chip.SHARED_BYTES
    assert (
        config.stages == ffi.limit("matmul", "max_stages")
        or source(config.stages + 1)["bytes"] > chip.SHARED_BYTES
    )
