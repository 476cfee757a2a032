"""Every architecture's `config.json` against the `ModelConfig` it means."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fdjax.config import (
    Alibi,
    Attention,
    Embedding,
    FeedForwardPart,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    RmsNorm,
    Rope,
)
from fdjax.layers.positions import rope_frequencies
from fdjax.models.config import ModelConfig
from fdjax.models.families import FAMILIES
from fdjax.models.families.fields import with_windows
from tests.support.hf_configs import hf_config

NORM = RmsNorm(3e-5)
LAYER = LayerSpec(
    attention=Attention(6, 2, 10, scale=10**-0.5, positions=Rope(5000.0, 10)),
    mlp=GatedMlp(size=72, activation="silu"),
    attention_norm=NORM,
    mlp_norm=NORM,
)
# Families whose heads are as wide as hidden size and heads make them.
NARROW = replace(LAYER.attention, head_dim=8, scale=8**-0.5, positions=Rope(5000.0, 8))


def model(family: str, layer: LayerSpec, **changes: Any) -> ModelConfig:
    """Three layers that are alike, and what else differs from Llama."""
    config = ModelConfig(
        family=family,
        hidden_size=48,
        layers=(layer,) * 3,
        max_position=96,
        embedding=Embedding(vocab_size=101, tied=False),
        final_norm=layer.attention_norm,
        bos_token_id=3,
        eos_token_ids=(4, 5),
        dtype="float16",
    )
    return replace(config, **changes)


def layer_of(
    attention: Attention, mlp: FeedForwardPart, norm: Norm, **changes: Any
) -> LayerSpec:
    return replace(LayerSpec(attention, mlp, norm, norm), **changes)


def windows(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(layer.attention.window for layer in config.layers)


_BIASED = replace(LAYER.attention, qkv_bias=True, out_bias=True)
_GEMMA_NORM = RmsNorm(3e-5, scale_offset=1.0)
_GEMMA = layer_of(
    replace(LAYER.attention, scale=12**-0.5, soft_cap=40.0),
    GatedMlp(72, "gelu_tanh"),
    _GEMMA_NORM,
    attention_post_norm=_GEMMA_NORM,
    mlp_post_norm=_GEMMA_NORM,
)
_ROTATED_IN_PART = replace(NARROW, qkv_bias=True, positions=Rope(5000.0, 4, True))
_GLM = replace(LAYER, attention=_ROTATED_IN_PART)
_UNGROUPED = Attention(6, 6, 8, scale=8**-0.5, positions=None)
_UNGROUPED_BIASED = replace(_UNGROUPED, qkv_bias=True, out_bias=True)
_GPTJ = layer_of(
    replace(_UNGROUPED, positions=Rope(10_000.0, 6, interleaved=True)),
    Mlp(72, "gelu_tanh", bias=True),
    LayerNorm(3e-5),
    mlp_norm=None,
)

EXPECTED: dict[str, ModelConfig] = {
    "llama": model("llama", layer_of(_BIASED, GatedMlp(72, "gelu", bias=True), NORM)),
    "mistral": model("mistral", replace(LAYER, attention=replace(NARROW, window=17))),
    "qwen2": model(
        "qwen2",
        LAYER,
        embedding=Embedding(vocab_size=101, tied=True),
        layers=with_windows(
            replace(LAYER, attention=replace(NARROW, qkv_bias=True)), (None, None, 17)
        ),
    ),
    "qwen3": model("qwen3", replace(LAYER, attention=replace(_BIASED, qk_norm=NORM))),
    "gemma2": model(
        "gemma2",
        _GEMMA,
        embedding=Embedding(101, tied=False, scale=math.sqrt(48), soft_cap=20.0),
        layers=with_windows(_GEMMA, (17, None, 17)),
    ),
    "glm": model("glm", _GLM),
    "glm4": model("glm4", replace(_GLM, attention_post_norm=NORM, mlp_post_norm=NORM)),
    "opt": model(
        "opt",
        layer_of(_UNGROUPED_BIASED, Mlp(72, "relu", bias=True), LayerNorm(1e-5)),
        embedding=Embedding(101, tied=True, positions=Learned(size=96, offset=2)),
    ),
    "gptj": model(
        "gptj", _GPTJ, embedding=Embedding(vocab_size=101, tied=False, head_bias=True)
    ),
    "bloom": model(
        "bloom",
        layer_of(
            replace(_UNGROUPED_BIASED, positions=Alibi()),
            Mlp(192, "gelu_tanh", bias=True),
            LayerNorm(3e-5),
        ),
        max_position=2048,
        embedding=Embedding(vocab_size=101, tied=True, norm=LayerNorm(3e-5)),
    ),
    # ChatGLM is GLM under other names.
    "chatglm": model(
        "chatglm",
        replace(
            _GLM, attention=replace(_ROTATED_IN_PART, positions=Rope(20_000.0, 4, True))
        ),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_every_field(family: str):
    assert ModelConfig.from_hf(hf_config(family)) == EXPECTED[family]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "chatglm"])
def test_absent_fields_mean_what_transformers_says(family: str):
    """A file without optional fields equals the file with the class's own values."""
    full = hf_config(family, defaults=True)
    sizes = {
        *("architectures", "vocab_size", "hidden_size", "num_hidden_layers"),
        *("num_attention_heads", "intermediate_size", "ffn_dim"),
        *("n_embd", "n_layer", "n_head"),
    }
    short = {name: value for name, value in full.items() if name in sizes}
    assert ModelConfig.from_hf(short) == ModelConfig.from_hf(full)


def test_glm_puts_its_end_tokens_where_the_file_says_null():
    glm = ModelConfig.from_hf(hf_config("glm") | {"eos_token_id": None})
    assert glm.eos_token_ids == (151329, 151336, 151338)
    assert ModelConfig.from_hf(hf_config("llama") | {"eos_token_id": None}) == replace(
        EXPECTED["llama"], eos_token_ids=()
    )


def test_mistral_without_window_attends_to_everything():
    mistral = ModelConfig.from_hf(hf_config("mistral") | {"sliding_window": None})
    assert windows(mistral) == (None, None, None)


def test_qwen_windows_from_a_layer_on_or_by_type_or_off():
    config = hf_config("qwen2")
    del config["layer_types"]
    assert windows(ModelConfig.from_hf(config)) == (None, None, 17)
    everywhere = ModelConfig.from_hf(config | {"max_window_layers": 0})
    assert windows(everywhere) == (17,) * 3
    off = ModelConfig.from_hf(config | {"use_sliding_window": False})
    assert windows(off) == (None,) * 3
    types = ["sliding_attention", "full_attention", "full_attention"]
    by_type = ModelConfig.from_hf(config | {"layer_types": types})
    assert windows(by_type) == (17, None, None)


def test_chatglm_biases():
    config = hf_config("chatglm") | {"add_bias_linear": True, "add_qkv_bias": False}
    (layer,) = ModelConfig.from_hf(config).kinds
    assert layer.attention.qkv_bias and layer.attention.out_bias and layer.mlp.bias


def published_angles(divisor: float, base: float) -> np.ndarray:
    """`RotaryEmbedding.forward_impl` of the published code, a row a position."""
    theta = 1.0 / base ** (np.arange(0, 4, 2) / 4)
    return np.outer(np.arange(40) / divisor, theta)


@pytest.mark.parametrize(
    ("fields", "divisor", "base"),
    [
        ({"_name_or_path": "THUDM/chatglm2-6b-32k"}, 16.0, 1e4),
        ({"_name_or_path": "/models/CodeGeeX2-6B"}, 16.0, 1e4),
        ({"_name_or_path": "THUDM/chatglm3-6b-32k"}, 1.0, 16e4),
        ({"_name_or_path": "THUDM/glm4-9b-chat"}, 1.0, 16e4),
        ({"_name_or_path": "THUDM/glm-4-9b-chat"}, 1.0, 16e4),
        ({"_name_or_path": "codegeex4-all-9b"}, 1.0, 16e4),
        # A model trained further, saved with its own path: GLM-4 by its vocabulary.
        ({"_name_or_path": "/data/run-7", "padded_vocab_size": 151_552}, 1.0, 16e4),
        ({"_name_or_path": "/data/run-7", "rope_ratio": 1}, 1.0, 1e4),
    ],
)
def test_rope_ratio_of_each_chatglm(
    fields: dict[str, Any], divisor: float, base: float
):
    config = hf_config("chatglm") | {"rope_ratio": 16} | fields
    (layer,) = ModelConfig.from_hf(config).kinds
    frequencies = rope_frequencies(layer.attention.positions)
    angles = np.outer(np.arange(40), frequencies)
    np.testing.assert_allclose(angles, published_angles(divisor, base), rtol=1e-6)


SCALED: tuple[tuple[dict[str, Any], Rope], ...] = (
    ({"rope_theta": 7.5}, Rope(7.5, 10)),
    ({"rope_scaling": None}, Rope(10_000.0, 10)),
    ({"rope_scaling": {"type": "default"}}, Rope(10_000.0, 10)),
    (
        {"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 4}},
        Rope(7.0, 10, scaling=LinearScaling(4.0)),
    ),
    (
        {
            "rope_scaling": {
                **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
            }
        },
        Rope(10_000.0, 10, scaling=Llama3Scaling(8.0, 1.0, 4.0, 64)),
    ),
    (
        {
            "rope_parameters": {
                **{"rope_type": "llama3", "factor": 8.0, "rope_theta": 7.5},
                **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            }
        },
        Rope(7.5, 10, scaling=Llama3Scaling(8.0, 1.0, 4.0, 96)),
    ),
    (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 7.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7.5},
            }
        },
        Rope(7.5, 10),
    ),
)


@pytest.mark.parametrize(("fields", "rope"), SCALED)
def test_rope_in_every_spelling(fields: dict[str, Any], rope: Rope):
    config = hf_config("llama")
    del config["rope_parameters"]
    (layer,) = ModelConfig.from_hf(config | fields).kinds
    assert layer.attention.positions == rope
