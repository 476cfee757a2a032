"""What `encode` writes is what the chain reads: each number, in order, by its name."""

import re
import types
import typing
from collections.abc import Iterator
from dataclasses import fields

import pytest

from fdjax.kernels.activations import ACTIVATIONS
from fdjax.kernels.decode_attention.unified import SchemeAttributes
from fdjax.kernels.layer_program.encoding import CODES
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.layer_program.operands import (
    ABSENT,
    OFFSET_BITS,
    Operand,
    WeightOperand,
)
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.matmul.params import (
    KERNELS,
    FlatConfig,
    GemmConfig,
    GemvConfig,
    LibraryConfig,
    MatmulConfig,
    PersistentConfig,
    config_numbers,
    kernel_name,
)
from fdjax.kernels.paged import ScoreAttributes
from fdjax.kernels.weight import FORMATS
from tests.support.operations import ROOT

FOLDER = ROOT / "ffi" / "layer_program"
CHAIN, ATTENTION = ((FOLDER / n).read_text() for n in ("chain.h", "attention.h"))

# Where the C++ has another name for a field: of the mathematics, or of its kernel.
NAMES = {
    "num_vectors": "vectors",
    "num_positions": "positions",
    "position_offset": "offset",
    "num_heads": "Hq",
    "num_kv_heads": "Hkv",
    "head_dim": "D",
    "m": "M",
    "n": "N",
    "k": "K",
    "slice_rows": "slice",
}
# The same of one launch alone.
NAMES_OF = {
    ("Embed", "table"): "tokens.vectors",
    ("Embed", "positions"): "positions.vectors",
    ("Norm", "total"): "sum",
    ("Sum", "total"): "sum",
    ("Prefill", "tiles"): "list",
}

_READ = re.compile(
    r"(?:(?P<target>[\w.>-]+)\s*=\s*(?:\w+<[^>]*>\()?)?"
    r"\breader_\.(?P<kind>number|integer|real|operand|optional|weight)\("
    r'(?:"(?P<name>[^"]+)")?'
    r"|\b(?P<called>layer|read_scores|read_scheme|read_rows|read_config"
    r"|read_activation)\("
)


def _body(text: str, function: str) -> str:
    """Of a method."""
    found = re.search(rf"^  [\w:]+ {function}\(.*?\) \{{", text, re.M)
    assert found is not None, function
    depth, end = 1, found.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[found.end() : end]


def _read(text: str, function: str) -> Iterator[tuple[str, str]]:
    """What a method reads: of what kind, and its name."""
    for found in _READ.finditer(_body(text, function)):
        if found["called"] == "read_config":
            yield "config", "config"
        elif found["called"]:
            yield from _read(text, found["called"])
        if found["called"]:
            continue
        kind = "number" if found["kind"] == "integer" else found["kind"]
        target = re.sub(r"^\w+(\.|->)", "", found["target"] or "")
        yield kind, found["name"] or target


def _written(
    launch: type[Launch | ScoreAttributes | SchemeAttributes],
) -> Iterator[tuple[str, str]]:
    """What `encode` writes of a launch, likewise."""
    hints = typing.get_type_hints(launch)
    for field in fields(launch):
        kind = hints[field.name]
        if kind in (ScoreAttributes, SchemeAttributes):
            yield from _written(kind)
            continue
        if kind is MatmulConfig:
            yield "config", "config"
            continue
        name = NAMES.get(field.name, field.name)
        yield _kind(kind), NAMES_OF.get((launch.__name__, field.name), name)


def _kind(hint: object) -> str:
    if isinstance(hint, types.UnionType):
        assert set(typing.get_args(hint)) == {Operand, types.NoneType}
        return "optional"
    return {
        int: "number",
        bool: "number",
        float: "real",
        Operand: "operand",
        WeightOperand: "weight",
    }[typing.cast(type, hint)]


@pytest.mark.parametrize("launch", CODES, ids=lambda launch: launch.__name__)
def test_the_chain_reads_what_is_written(launch: type[Launch]):
    returned = rf"case Code::k{launch.__name__}:\s+return (attend_\.)?(\w+)\("
    case = re.search(returned, CHAIN)
    assert case is not None
    text = ATTENTION if case[1] else CHAIN
    assert list(_read(text, case[2])) == list(_written(launch))


def test_codes_are_in_the_same_order():
    enum = re.search(
        r"enum class Code[^{]*\{([^}]*)\}", (FOLDER / "reader.h").read_text()
    )
    assert enum is not None
    *codes, end = re.findall(r"k(\w+),", enum[1])
    assert end == "End" and codes == [launch.__name__ for launch in CODES]


def test_activations_are_in_the_same_order():
    text = (ROOT / "ffi" / "matmul" / "params.h").read_text()
    enum = re.search(r"enum class Activation[^{]*\{([^}]*)\}", text)
    assert enum is not None
    names = re.findall(r"k(\w+)", enum[1])
    assert names == [name.title().replace("_", "") for name in ACTIVATIONS]
    assert f"kLastActivation = static_cast<int>(Activation::k{names[-1]})" in text


def test_an_absent_operand_is_the_same_number():
    text = (FOLDER / "reader.h").read_text()
    assert re.findall(r"kAbsent = (-?\d+);", text) == [str(ABSENT)]


def test_views_of_weights_are_of_the_formats_in_their_order():
    text = (ROOT / "ffi" / "include" / "fdjax" / "weight.h").read_text()
    variant = re.search(r"WeightView = std::variant<([^>]*)>", text)
    assert variant is not None
    assert variant[1].split(", ") == [f"{one.__name__}View" for one in FORMATS]
    for one in FORMATS:
        view = re.search(rf"struct {one.__name__}View \{{([^}}]*)\}}", text)
        assert view is not None
        names = [field.name for field in fields(one)]
        assert re.findall(r"void\* (\w+);", view[1]) == names


def test_a_weight_is_read_as_it_is_written():
    weight = WeightOperand(0, (Operand(5, 3),))
    assert weight.numbers == (0, 5 << OFFSET_BITS | 3)
    body = _body((FOLDER / "reader.h").read_text(), "weight")
    assert re.findall(r"\b(number|operand)\(", body) == ["number", "operand"]


LAUNCH_MATMUL = (ROOT / "ffi" / "matmul" / "launch_matmul.h").read_text()


def test_launch_configs_of_matmul_are_read_as_they_are_written():
    variant = re.search(r"MatmulConfig =\s+std::variant<([^>]*)>", LAUNCH_MATMUL)
    assert variant is not None
    named = re.split(r",\s+", variant[1])
    assert named == [kernel.__name__ for kernel in KERNELS]
    for code, kernel in enumerate(KERNELS):
        names = [field.name for field in fields(kernel)]
        made = re.search(rf"return {kernel.__name__}\{{([^}}]*)\}}", LAUNCH_MATMUL)
        assert made is not None
        assert re.findall(r'\.(\w+) = numbers\.number\(\s*"(\w+)"', made[1]) == [
            (name, name) for name in names
        ]
        before = LAUNCH_MATMUL[: made.start()].rstrip()
        assert before.endswith(f"case {code}:" if names else "default:")


def test_a_kernel_has_the_name_of_an_implementation():
    configs = [
        GemvConfig(),
        FlatConfig(2, 1, 56, 1, 4),
        GemmConfig(96, 2),
        LibraryConfig(0),
        PersistentConfig(256, 8, shares_weights=True),
    ]
    assert [type(config) for config in configs] == [*KERNELS]
    assert [kernel_name(config) for config in configs] == [
        *("gemv", "flat", "gemm", "library", "persistent")
    ]
    assert {kernel_name(config) for config in configs} <= {*MATMUL.names}


def test_a_launch_config_is_its_kernel_and_its_numbers():
    assert config_numbers(GemvConfig()) == (0,)
    assert config_numbers(FlatConfig(2, 1, 56, 1, 4, 9)) == (1, 2, 1, 56, 1, 4, 9)
    gemm = GemmConfig(96, 2)
    assert config_numbers(gemm) == (2, 96, 2, gemm.stages)
    assert config_numbers(LibraryConfig(3)) == (3, 3)
    persistent = PersistentConfig(256, 8, shares_weights=True)
    assert config_numbers(persistent) == (4, 256, 8, 1)
