"""Weight rules: every tensor of the Hugging Face model, and nothing else."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fdjax.config import GatedMlp
from fdjax.models.config import ModelConfig
from fdjax.models.families import FAMILIES
from fdjax.models.families.bloom import split_heads
from tests.support.hf_configs import hf_config, published
from tests.support.model_sizes import parameter_sizes

TRANSFORMERS = [name for name in FAMILIES if name != "chatglm"]


def sources(model: ModelConfig) -> list[str]:
    rules = FAMILIES[model.family].rules(model)
    return [name for rule in rules for name in rule.sources]


def hf_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the state of the Hugging Face model."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = config["model_type"]
    fields = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    state = model.state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


@pytest.mark.parity
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_rules_name_the_tensors_of_the_hugging_face_model(
    family: str, *, tied: bool, bias: bool
):
    config = hf_config(family) | {"tie_word_embeddings": tied}
    for name in ("attention_bias", "mlp_bias", "enable_bias"):
        if name in config:
            config[name] = bias
    expected = set(hf_shapes(config))
    if tied:
        expected.discard("lm_head.weight")
    found = sources(ModelConfig.from_hf(config))
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parity
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_sources_of_a_rule_have_its_parameters_shape(family: str):
    config = hf_config(family)
    model = ModelConfig.from_hf(config)
    shapes = hf_shapes(config)
    sizes = parameter_sizes(model)
    for rule in FAMILIES[family].rules(model):
        rows = [shapes[name] for name in rule.sources]
        joined = (sum(shape[0] for shape in rows), *rows[0][1:])
        assert joined == sizes[rule.target], rule.target


@pytest.mark.parametrize("family", FAMILIES)
def test_rules_fill_every_parameter_once(family: str):
    model = ModelConfig.from_hf(hf_config(family))
    for tied in (False, True):
        model = replace(model, embedding=replace(model.embedding, tied=tied))
        rules = FAMILIES[family].rules(model)
        assert sorted(rule.target for rule in rules) == sorted(parameter_sizes(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_weight_keeps_its_parts(family: str):
    """Also where a checkpoint stores it fused: they could be divided among devices."""
    model = ModelConfig.from_hf(hf_config(family))
    sizes = parameter_sizes(model)
    fused = {"attention.qkv": ["q", "k", "v"]}
    if isinstance(model.layers[0].mlp, GatedMlp):
        fused["mlp.up"] = ["gate", "up"]
    for rule in FAMILIES[family].rules(model):
        role = re.sub(r"^layers\.\d+\.|\.(weight|bias)$", "", rule.target)
        assert [part.name for part in rule.parts] == fused.get(role, [])
        if rule.parts:
            assert sum(part.rows for part in rule.parts) == sizes[rule.target][0]


def test_chatglm_names():
    """The names of the published ChatGLM2-6B, whose class transformers lacks."""
    model = ModelConfig.from_hf(published("chatglm2-6b") | {"num_layers": 1})
    layer = "transformer.encoder.layers.0"
    assert set(sources(model)) == {
        "transformer.embedding.word_embeddings.weight",
        f"{layer}.input_layernorm.weight",
        f"{layer}.self_attention.query_key_value.weight",
        f"{layer}.self_attention.query_key_value.bias",
        f"{layer}.self_attention.dense.weight",
        f"{layer}.post_attention_layernorm.weight",
        f"{layer}.mlp.dense_h_to_4h.weight",
        f"{layer}.mlp.dense_4h_to_h.weight",
        "transformer.encoder.final_layernorm.weight",
        "transformer.output_layer.weight",
    }


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("chatglm", "transformer.rotary_pos_emb.inv_freq"),
        ("chatglm", "rotary_pos_emb.inv_freq"),
        ("gptj", "h.11.attn.bias"),
        ("gptj", "h.11.attn.masked_bias"),
        ("opt", "decoder.version"),
    ],
)
def test_stored_constants_are_ignored(family: str, name: str):
    assert any(re.fullmatch(pattern, name) for pattern in FAMILIES[family].ignored)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_a_model_needs_is_ignored(family: str):
    model = ModelConfig.from_hf(hf_config(family))
    spec = FAMILIES[family]
    for source in sources(model):
        for prefix in ("", *spec.prefixes):
            name = source.removeprefix(prefix)
            assert not any(re.fullmatch(each, name) for each in spec.ignored), name


@pytest.mark.parametrize("shape", [(3 * 2 * 4,), (3 * 2 * 4, 5)])
def test_bloom_heads_are_split_as_the_class_views_them(shape: tuple[int, ...]):
    """BloomAttention views the fused QKV as [heads, 3, head_dim]."""
    fused = np.arange(np.prod(shape)).reshape(shape)
    viewed = fused.reshape(2, 3, 4, *shape[1:])
    parts = [viewed[:, part].reshape(-1, *shape[1:]) for part in range(3)]
    np.testing.assert_array_equal(split_heads(2)(fused), np.concatenate(parts))
