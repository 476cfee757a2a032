"""The linear maps of published models."""

import json
import pathlib

import jax.numpy as jnp
import pytest

from fdjax.models import ModelConfig
from fdjax.models.linears import linears

MODELS = pathlib.Path(__file__).parents[2] / "configs" / "models"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "llama3-8b",
            {
                "qkv": (6144, 4096),
                "out": (4096, 4096),
                "gate_up": (28672, 4096),
                "down": (4096, 14336),
                "head": (128256, 4096),
            },
        ),
        (
            "chatglm2-6b",
            {
                "qkv": (4608, 4096),
                "out": (4096, 4096),
                "gate_up": (27392, 4096),
                "down": (4096, 13696),
                "head": (65024, 4096),
            },
        ),
        (  # neither a gate nor a head of its own
            "opt-6.7b",
            {
                "qkv": (12288, 4096),
                "out": (4096, 4096),
                "up": (16384, 4096),
                "down": (4096, 16384),
                "head": (50272, 4096),
            },
        ),
    ],
)
def test_linears(model: str, expected: dict[str, tuple[int, int]]):
    config = ModelConfig.from_hf(json.loads((MODELS / f"{model}.json").read_text()))
    found = linears(config, dtype=jnp.float16)
    assert {one.name: (one.n, one.k) for one in found} == expected
    assert [one.name for one in found if one.gated] == [
        name for name in expected if name == "gate_up"
    ]
    assert {jnp.dtype(one.dtype) for one in found} == {jnp.dtype(jnp.float16)}
