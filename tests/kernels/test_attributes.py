"""The structs that handlers decode, and the dataclasses that Python sends for them."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from fdjax.kernels import ffi
from fdjax.kernels.add_norm import cuda as add_norm_cuda
from fdjax.kernels.attention_plan import cuda as plan_cuda
from fdjax.kernels.decode_attention import cpu as decode_cpu
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.decode_attention.config import LaunchAttributes
from fdjax.kernels.decode_attention.unified import SchemeAttributes, UnifiedMax
from fdjax.kernels.embedding import cuda as embedding_cuda
from fdjax.kernels.layer_program import call as layer_program_call
from fdjax.kernels.matmul import handler as matmul_handler
from fdjax.kernels.paged import AttentionAttributes, ScoreAttributes
from fdjax.kernels.paged.calls import ALL_TOKENS
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.kernels.prefill_plan import cuda as prefill_plan_cuda
from fdjax.kernels.rope_kv_write import cuda as rope_cuda
from fdjax.kernels.token_places import cuda as token_places_cuda
from tests.support.operations import ROOT, operations

# What each struct of C++ is in Python.
STRUCTS: dict[str, type[Any]] = {
    "add_norm::Attributes": add_norm_cuda.Attributes,
    "attention_plan::Attributes": plan_cuda.Attributes,
    "decode_attention::GpuAttributes": decode_cuda.Attributes,
    "decode_attention::HostAttributes": decode_cpu.Attributes,
    "decode_attention::LaunchAttributes": LaunchAttributes,
    "decode_attention::SchemeAttributes": SchemeAttributes,
    "embedding::Attributes": embedding_cuda.Attributes,
    "layer_program::Attributes": layer_program_call.Attributes,
    "matmul::Attributes": matmul_handler.Attributes,
    "paged::Attributes": AttentionAttributes,
    "paged::Scores": ScoreAttributes,
    "prefill_attention::Attributes": prefill_handler.Attributes,
    "prefill_plan::Attributes": prefill_plan_cuda.Attributes,
    "rope_kv_write::Attributes": rope_cuda.Attributes,
    "shared_prefix::Attributes": decode_cuda.SharingAttributes,
    "token_places::Attributes": token_places_cuda.Attributes,
}
KINDS = {"int64_t": int, "float": float, "bool": bool}
# Whose Python calls an operation's handler, where another operation's does.
CALLERS = {"shared_prefix": "decode_attention"}

_SOURCES = {path: path.read_text() for path in sorted(ROOT.glob("ffi/*/*.[hc]*"))}
_REGISTERED = {
    found[1]: re.findall(r'StructMember<([\w:]+)>\(\s*"(\w+)"\)', found[2])
    for text in _SOURCES.values()
    for found in re.finditer(
        r"XLA_FFI_REGISTER_STRUCT_ATTR_DECODING\(\s*fdjax::([\w:]+),(.*?)\);",
        text,
        re.S,
    )
}


def _fields(struct: str) -> list[tuple[str, str]]:
    """Types and names of a struct's fields, as its definition has them."""
    namespace, name = struct.split("::")
    bodies = [
        found[1]
        for path, text in _SOURCES.items()
        if path.parent.name == namespace
        for found in re.finditer(rf"^struct {name} \{{(.*?)^\}};", text, re.S | re.M)
    ]
    assert len(bodies) == 1
    body = re.sub(r"//.*", "", bodies[0])
    lines = (line.split(None, 1) for line in body.split(";") if line.strip())
    return [(kind, name.strip()) for kind, names in lines for name in names.split(",")]


def test_every_registered_struct_is_known():
    assert sorted(_REGISTERED) == sorted(STRUCTS)


# The decoder fills a struct's fields in the order in which they are registered.
@pytest.mark.parametrize("struct", STRUCTS)
def test_members_are_registered_as_they_are_defined(struct: str):
    short = [(kind.split("::")[-1], name) for kind, name in _REGISTERED[struct]]
    assert short == [(kind.split("::")[-1], name) for kind, name in _fields(struct)]


@pytest.mark.parametrize("struct", STRUCTS)
def test_python_sends_what_is_registered(struct: str):
    sent = {field.name: field.type for field in dataclasses.fields(STRUCTS[struct])}
    taken = {
        name: KINDS[kind] if kind in KINDS else STRUCTS[kind.removeprefix("fdjax::")]
        for kind, name in _REGISTERED[struct]
    }
    assert sent == taken


def test_numbers_have_the_width_that_handlers_read():
    scheme = UnifiedMax.attributes(None)
    scores = ScoreAttributes.of(1, None, None)
    told = decode_cpu.Attributes(AttentionAttributes(2, scores), scheme, 8)
    sent = ffi.attributes(told)
    assert sent == {
        "attention": {
            "layer": 2,
            "scores": {"scale": 1.0, "soft_cap": 0.0, "window": ALL_TOKENS},
        },
        "scheme": {"unified": False, "phi": 0.0, "low": -1.0, "high": 1.0},
        "max_lanes": 8,
    }
    inner: Any = sent["attention"]
    assert type(inner["layer"]) is np.int64
    assert type(inner["scores"]["scale"]) is np.float32
    scheme_sent: Any = sent["scheme"]
    assert type(scheme_sent["unified"]) is np.bool_
    assert hash(sent) == hash(ffi.attributes(told))
    assert sent != ffi.attributes(dataclasses.replace(told, max_lanes=4))


@pytest.mark.parametrize("operation", operations())
def test_attributes_have_the_names_that_handlers_bind(operation: str):
    folder = ROOT / "fdjax" / "kernels" / CALLERS.get(operation, operation)
    python = "".join(path.read_text() for path in folder.glob("*.py"))
    bound: set[str] = set()
    for path, text in _SOURCES.items():
        if path.parent.name == operation:
            found = re.findall(r'Attr<[\w:<> ]+>\(\s*"(\w+)"\)', text)
            bound.update(found)
    sent = set(re.findall(r"\b(attributes|launch_config|program|places)=(?!=)", python))
    assert sent == bound
    assert ("ffi.attributes(" in python) == ("attributes" in bound)
