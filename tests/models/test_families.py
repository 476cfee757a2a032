import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fdjax.config import Alibi, GatedMlp, LayerNorm, Mlp, RmsNorm, Rope
from fdjax.models import load
from fdjax.models.config import ModelConfig
from fdjax.models.families import FAMILIES
from tests.support.greedy import greedy
from tests.support.hf_model import FIXTURES, HfModel
from tests.support.hf_models import MODELS
from tests.support.numerics import relative_error

# Float32 sums in another order differ by about 1e-6 after a few layers; a wrong
# epsilon, a shifted position or a missing bias is far above this.
TOLERANCE = 1e-4

# What every family is held against transformers on.
HEAD_SIZES = {64, 80, 96, 128}
GROUPS = {1, 3, 8}

# Their classes have a key/value head for every query head.
UNGROUPED = {"opt", "gptj", "bloom"}

# The published ChatGLM code always has an output layer; the other classes allow both.
TIED = {"chatglm": {False}}

PAGE_SIZES = itertools.cycle((4, 8))


def _config(model: HfModel) -> ModelConfig:
    text = (FIXTURES / model.name / "config.json").read_text()
    return ModelConfig.from_hf(json.loads(text))


@pytest.mark.parametrize(
    ("model", "page_size"),
    [pytest.param(m, z, id=m.name) for m, z in zip(MODELS, PAGE_SIZES, strict=False)],
)
def test_equals_transformers(model: HfModel, page_size: int):
    folder = FIXTURES / model.name
    expected = load_file(folder / "expected.safetensors")
    lengths = expected["lengths"]
    logits, tokens = greedy(
        load(folder, dtype=jnp.float32),
        expected["prompts"],
        lengths,
        new_tokens=expected["tokens"].shape[1],
        page_size=page_size,
    )
    ends = np.cumsum(lengths)[:-1]
    pairs = zip(np.split(logits, ends), np.split(expected["logits"], ends), strict=True)
    errors = [relative_error(actual, wanted) for actual, wanted in pairs]
    assert max(errors) <= TOLERANCE, f"relative error of each prompt: {errors}"
    np.testing.assert_array_equal(tokens, expected["tokens"])


def test_every_family_has_a_fixture():
    assert {_config(m).family for m in MODELS} == set(FAMILIES)


def test_every_fixture_has_a_test():
    folders = {p.parent.name for p in FIXTURES.glob("*/model.safetensors")}
    assert folders == {m.name for m in MODELS}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_compared_on_every_shape(family: str):
    configs = [c for c in map(_config, MODELS) if c.family == family]
    assert {c.head_dim for c in configs} >= HEAD_SIZES
    assert {c.embedding.tied for c in configs} == TIED.get(family, {True, False})
    heads = [(c.num_heads, c.num_kv_heads) for c in configs]
    assert any(query & (query - 1) for query, _ in heads), "all are powers of two"
    if family in UNGROUPED:
        return
    assert {query // kv for query, kv in heads} >= GROUPS
    # Groups of several heads over several key/value heads: their order matters.
    assert any(query > kv > 1 for query, kv in heads)


def test_fixtures_cover_what_families_differ_in():
    configs = [_config(m) for m in MODELS]
    by_model = [{layer.attention.window for layer in c.layers} for c in configs]
    assert {None} in by_model
    assert any(None in windows and len(windows) > 1 for windows in by_model)
    layers = [layer for c in configs for layer in c.kinds]
    assert {type(x.attention.positions) for x in layers} == {Rope, Alibi, type(None)}
    assert any(c.embedding.positions for c in configs)
    assert {type(x.mlp) for x in layers} == {Mlp, GatedMlp}
    assert {type(x.attention_norm) for x in layers} == {RmsNorm, LayerNorm}
    assert {x.mlp_norm is None for x in layers} == {True, False}
    assert {x.mlp_post_norm is None for x in layers} == {True, False}
