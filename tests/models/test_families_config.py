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
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    Rope,
)
from fdjax.layers.positions import rope_frequencies
from fdjax.models.config import ModelConfig
from fdjax.models.families import FAMILIES
from tests.support.hf_configs import hf_config

BASE = ModelConfig(
    family="llama",
    hidden_size=48,
    num_layers=3,
    max_position=96,
    embedding=Embedding(vocab_size=101, tied=False),
    positions=Rope(theta=5000.0, rotary_dim=10),
    attention=Attention(6, 2, 10, scale=10**-0.5),
    windows=(None, None, None),
    mlp=Mlp(size=72, activation="silu", gated=True),
    norm=Norm("rms", 3e-5),
    bos_token_id=3,
    eos_token_ids=(4, 5),
    dtype="float16",
)
_GLM = replace(
    BASE,
    family="glm",
    positions=Rope(theta=5000.0, rotary_dim=4, interleaved=True),
    attention=Attention(6, 2, 8, scale=8**-0.5, qkv_bias=True),
)
_OPT = replace(
    BASE,
    family="opt",
    embedding=Embedding(vocab_size=101, tied=True),
    positions=Learned(size=96, offset=2),
    attention=Attention(6, 6, 8, scale=8**-0.5, qkv_bias=True, out_bias=True),
    mlp=Mlp(size=72, activation="relu", gated=False, bias=True),
    norm=Norm("layer", 1e-5),
)

EXPECTED: dict[str, ModelConfig] = {
    "llama": replace(
        BASE,
        attention=replace(BASE.attention, qkv_bias=True, out_bias=True),
        mlp=replace(BASE.mlp, bias=True, activation="gelu"),
    ),
    "mistral": replace(
        BASE,
        family="mistral",
        positions=Rope(theta=5000.0, rotary_dim=8),
        attention=Attention(6, 2, 8, scale=8**-0.5),
        windows=(17, 17, 17),
    ),
    "qwen2": replace(
        BASE,
        family="qwen2",
        embedding=Embedding(vocab_size=101, tied=True),
        positions=Rope(theta=5000.0, rotary_dim=8),
        attention=Attention(6, 2, 8, scale=8**-0.5, qkv_bias=True),
        windows=(None, None, 17),
    ),
    "qwen3": replace(
        BASE,
        family="qwen3",
        attention=replace(
            BASE.attention, qkv_bias=True, out_bias=True, qk_norm=BASE.norm
        ),
    ),
    "gemma2": replace(
        BASE,
        family="gemma2",
        embedding=Embedding(101, tied=False, scale=math.sqrt(48), soft_cap=20.0),
        attention=replace(BASE.attention, scale=12**-0.5, soft_cap=40.0),
        windows=(17, None, 17),
        mlp=replace(BASE.mlp, activation="gelu_tanh"),
        norm=Norm("rms", 3e-5, scale_offset=1.0),
        post_norms=True,
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, family="glm4", post_norms=True),
    "opt": _OPT,
    "gptj": replace(
        _OPT,
        family="gptj",
        embedding=Embedding(vocab_size=101, tied=False, head_bias=True),
        positions=Rope(theta=10_000.0, rotary_dim=6, interleaved=True),
        attention=Attention(6, 6, 8, scale=8**-0.5),
        mlp=Mlp(size=72, activation="gelu_tanh", gated=False, bias=True),
        norm=Norm("layer", 3e-5),
        residual="parallel",
    ),
    "bloom": replace(
        _OPT,
        family="bloom",
        max_position=2048,
        embedding=Embedding(vocab_size=101, tied=True, norm=Norm("layer", 3e-5)),
        positions=Alibi(),
        mlp=Mlp(size=192, activation="gelu_tanh", gated=False, bias=True),
        norm=Norm("layer", 3e-5),
    ),
    # ChatGLM is GLM under other names.
    "chatglm": replace(_GLM, family="chatglm", positions=Rope(20_000.0, 4, True)),
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
    model = ModelConfig.from_hf(hf_config("glm") | {"eos_token_id": None})
    assert model.eos_token_ids == (151329, 151336, 151338)
    assert ModelConfig.from_hf(hf_config("llama") | {"eos_token_id": None}) == replace(
        EXPECTED["llama"], eos_token_ids=()
    )


def test_mistral_without_window_attends_to_everything():
    model = ModelConfig.from_hf(hf_config("mistral") | {"sliding_window": None})
    assert model.windows == (None, None, None)


def test_qwen_windows_from_a_layer_on_or_by_type_or_off():
    config = hf_config("qwen2")
    del config["layer_types"]
    assert ModelConfig.from_hf(config).windows == (None, None, 17)
    assert ModelConfig.from_hf(config | {"max_window_layers": 0}).windows == (17,) * 3
    off = ModelConfig.from_hf(config | {"use_sliding_window": False})
    assert off.windows == (None,) * 3
    types = ["sliding_attention", "full_attention", "full_attention"]
    by_type = ModelConfig.from_hf(config | {"layer_types": types})
    assert by_type.windows == (17, None, None)


def test_chatglm_biases():
    config = hf_config("chatglm") | {"add_bias_linear": True, "add_qkv_bias": False}
    model = ModelConfig.from_hf(config)
    assert model.attention.qkv_bias and model.attention.out_bias and model.mlp.bias


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
    frequencies = rope_frequencies(ModelConfig.from_hf(config).positions)
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
    assert ModelConfig.from_hf(config | fields).positions == rope
