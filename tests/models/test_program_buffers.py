"""Where a program's values lie: never two at one place that are both still needed."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fdjax.config import (
    Attention,
    Embedding,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Mlp,
    Norm,
    RmsNorm,
)
from fdjax.models import ModelConfig
from fdjax.models.program import Program, program_of
from fdjax.models.program.buffers import Buffers, Place, assign

PUBLISHED = pathlib.Path(__file__).parents[2] / "configs" / "models"
# Elements a token: two of the hidden size, and the widest of QKV and feed-forward part.
COLUMNS = {
    "llama3-8b": (4096, 14336),
    "llama2-7b": (4096, 12288),
    "llama3-70b": (8192, 28672),
    "mistral-7b-v0.1": (4096, 14336),
    "qwen1.5-7b": (4096, 12288),
    "qwen2.5-7b": (3584, 18944),
    "qwen3-8b": (4096, 12288),
    "gemma2-9b": (3584, 14336),
    "glm-4-9b-0414": (4096, 13696),
    "chatglm2-6b": (4096, 13696),
    "gpt-j-6b": (4096, 16384),
    "opt-6.7b": (4096, 16384),
    "bloom-176b": (14336, 57344),
    "bloom-7b1": (4096, 16384),
}
each_program = pytest.mark.parametrize("selects", [False, True])


def published(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((PUBLISHED / f"{name}.json").read_text()))


def check(program: Program, buffers: Buffers) -> None:
    """Replays a program over buffers whose columns say whose they are."""
    owners = [np.full(width, -1) for width in buffers.widths]

    def columns(place: Place) -> np.ndarray:
        whole = owners[place.buffer - 1]
        assert 0 <= place.first <= place.first + place.columns <= whole.size
        return whole[place.first : place.first + place.columns]

    for instruction in program.instructions:
        for value in instruction.reads:
            place = buffers.places[value.index]
            assert place.columns == value.columns
            assert (columns(place) == value.index).all(), (instruction, value)
        for value in instruction.writes:
            place = buffers.places[value.index]
            for operand in instruction.reads:
                other = buffers.places[operand.index]
                if place.overlaps(other):
                    assert operand in instruction.overwrites
                    assert place == other
            columns(place)[:] = value.index
        for value in instruction.writes:
            assert (columns(buffers.places[value.index]) == value.index).all()


@each_program
@pytest.mark.parametrize(("name", "sizes"), COLUMNS.items())
def test_three_buffers_serve_published_models(
    name: str, sizes: tuple[int, int], selects: bool
):
    hidden, wide = sizes
    program = program_of(published(name), selects=selects)
    buffers = assign(program)
    check(program, buffers)
    assert buffers.widths == (hidden, hidden, wide)


def test_llama_3_8b_has_45056_bytes_a_token():
    assert 2 * assign(program_of(published("llama3-8b"), selects=True)).columns == 45056


small, bools = some.integers(1, 4), some.booleans()
NORMS: dict[str, Norm | None] = {
    "none": None,
    "rms": RmsNorm(1e-5),
    "layer": LayerNorm(1e-5),
}
maybe_kinds = some.sampled_from([*NORMS])
LAYERS = some.fixed_dictionaries(
    {
        "size": some.integers(1, 40),
        "gated": bools,
        "bias": bools,
        "qk_norm": maybe_kinds,
        "mlp_norm": maybe_kinds,
        "attention_post_norm": maybe_kinds,
        "mlp_post_norm": maybe_kinds,
    }
)


def layer(heads: tuple[int, int, int], drawn: dict[str, Any]) -> LayerSpec:
    groups, num_kv_heads, head_dim = heads
    mlp = GatedMlp if drawn["gated"] else Mlp
    return LayerSpec(
        attention=Attention(
            num_heads=groups * num_kv_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=1.0,
            positions=None,
            qkv_bias=drawn["bias"],
            qk_norm=NORMS[drawn["qk_norm"]],
        ),
        mlp=mlp(drawn["size"], "silu", bias=drawn["bias"]),
        attention_norm=RmsNorm(1e-5),
        mlp_norm=NORMS[drawn["mlp_norm"]],
        attention_post_norm=NORMS[drawn["attention_post_norm"]],
        mlp_post_norm=NORMS[drawn["mlp_post_norm"]],
    )


@each_program
@settings(max_examples=100, deadline=None)
@given(
    hidden_size=some.integers(1, 20),
    heads=some.tuples(small, small, small),
    layers=some.lists(LAYERS, min_size=1, max_size=3),
    embed_norm=maybe_kinds,
)
def test_no_two_values_that_are_needed_share_a_place(
    hidden_size: int,
    heads: tuple[int, int, int],
    layers: list[dict[str, Any]],
    embed_norm: str,
    selects: bool,
):
    config = ModelConfig(
        family="llama",
        hidden_size=hidden_size,
        layers=tuple(layer(heads, drawn) for drawn in layers),
        max_position=64,
        embedding=Embedding(10, tied=True, norm=NORMS[embed_norm]),
        final_norm=RmsNorm(1e-5),
    )
    program = program_of(config, selects=selects)
    check(program, assign(program))


def test_the_check_sees_a_place_that_is_given_twice():
    program = program_of(published("llama3-8b"), selects=False)
    buffers = assign(program)
    wrong = [*buffers.places]
    mixed = next(value for value in program.values if value.name == "mixed")
    wrong[mixed.index] = Place(1, 0, mixed.columns)  # over the residual stream
    with pytest.raises(AssertionError):
        check(program, Buffers(tuple(wrong), buffers.widths))
