"""What is refused in a `config.json`, and that the message names the field."""

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.errors import ConfigError
from fdjax.models.config import ModelConfig
from fdjax.models.families import FAMILIES, family_of
from tests.support.hf_configs import hf_config

_SLIDING = ["full_attention", "sliding_attention", "full_attention"]
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}

REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama", {"architectures": ["WombatForCausalLM"]}, "WombatForCausalLM.*supported"),
    ("llama", {"architectures": []}, "architectures = .*expected a list"),
    ("llama", {"architectures": None}, "architectures = None: expected a list"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures = .*expected"),
    (
        "llama",
        {"architectures": ["MixtralForCausalLM", "LlamaForCausalLM"]},
        "architectures = .*: MixtralForCausalLM is not implemented; supported are",
    ),
    (
        "llama",
        {"architectures": ["LlamaForCausalLM", "MixtralForCausalLM"]},
        "architectures = .*: MixtralForCausalLM is not implemented; supported are",
    ),
    (
        "llama",
        {"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]},
        "architectures = .*: classes of llama and mistral; .*hf_overrides",
    ),
    ("llama", {"architectures": [7, "LlamaForCausalLM"]}, "architectures = .*expected"),
    (
        "llama",
        {"model_type": "mixtral"},
        "model_type = 'mixtral': contradicts architectures = .*LlamaForCausalLM",
    ),
    ("llama", {"model_type": 7}, "model_type = 7: contradicts architectures = "),
    (
        "chatglm",
        {"model_type": "glm4"},
        "model_type = 'glm4': contradicts .*ChatGLMModel.*'chatglm'.*hf_overrides",
    ),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = .*quantis"),
    ("llama", {"hidden_size": "48"}, "hidden_size = '48': expected an integer"),
    ("llama", {"hidden_size": -48}, "hidden_size = -48: must be from 1"),
    ("llama", {"hidden_size": None}, "hidden_size = None: expected an integer"),
    ("llama", {"num_hidden_layers": 10**8}, "num_hidden_layers = 1.*to 10000"),
    ("llama", {"rms_norm_eps": 0.0}, "rms_norm_eps = 0.0: must be positive"),
    ("llama", {"hidden_act": "mish"}, "hidden_act = 'mish': supported are silu"),
    ("llama", {"dtype": "float64"}, "dtype = 'float64': supported are float16"),
    ("llama", {"eos_token_id": "</s>"}, "eos_token_id = '</s>': expected a token id"),
    ("llama", {"num_key_value_heads": 4}, "6 is not a multiple of num_key_value.* = 4"),
    (
        "llama",
        {"head_dim": None, "num_attention_heads": 5, "num_key_value_heads": 5},
        "hidden_size = 48: 48 is not a multiple of num_attention_heads = 5",
    ),
    ("llama", {"head_dim": 11}, "head_dim = 11: rotates 11 dimensions"),
    ("llama", {"num_experts": 8}, "does not know num_experts = 8.*hf_overrides"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: this arch"),
    ("llama", {"rope_theta": 6000.0}, r"rope_parameters\.rope_theta = 5000.0: contrad"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling = .*contradicts"),
    ("llama", {"rope_parameters": "linear"}, "rope_parameters = 'linear': expected an"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear"}},
        r"rope_parameters\.factor: is missing",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}},
        r"does not know rope_parameters\.mrope_section = \[1, 2\]",
    ),
    (
        "llama",
        {"rope_parameters": {**_LLAMA3, "high_freq_factor": 4.0}},
        "high_freq_factor = 4.0: must exceed low_freq_factor = 4.0",
    ),
    (
        "gemma2",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {"rope_theta": 1e4},
            }
        },
        "sliding_attention = .*contradicts full_attention",
    ),
    ("mistral", {"layer_types": _SLIDING}, "does not know layer_types"),
    ("qwen2", {"layer_types": _SLIDING[:2]}, "layer_types = .*2 types for 3 layers"),
    ("qwen2", {"layer_types": ["mamba"] * 3}, 'layer_types = .*layer 0 is "mamba"'),
    (
        "qwen2",
        {"layer_types": _SLIDING, "use_sliding_window": False},
        "sliding_window = 17: layer_types has sliding layers",
    ),
    (
        "gemma2",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention = T",
    ),
    ("gemma2", {"hidden_act": "silu"}, "hidden_act = 'silu': only .*gelu_pytorch_tanh"),
    (
        "gemma2",
        {"sliding_window_size": 18},
        "sliding_window_size = 18: only 17 or null",
    ),
    ("glm", {"partial_rotary_factor": 0.6}, "partial_rotary_factor.*contradicts"),
    (
        "glm",
        {"rope_parameters": {"partial_rotary_factor": 0.4}},
        r"rope_parameters\.partial_rotary_factor = 0.4: rotates 3 dimensions",
    ),
    (
        "glm",
        {"rope_parameters": {"partial_rotary_factor": 1.5}},
        r"rope_parameters\.partial_rotary_factor = 1.5: must be above 0 and at most 1",
    ),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before = False: only true"),
    (
        "opt",
        {"_remove_final_layer_norm": True},
        "_remove_final_layer_norm = True: only",
    ),
    (
        "opt",
        {"layer_norm_elementwise_affine": False},
        "layer_norm_elementwise_affine =",
    ),
    ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim = 24: only 48 or null"),
    ("opt", {"num_attention_heads": 5}, "48 is not a multiple of num_attention_heads"),
    (
        "gptj",
        {"rotary_dim": 10},
        "rotary_dim = 10: rotates 10 dimensions of a head of 8",
    ),
    ("gptj", {"rotary_dim": None}, "rotary_dim = None: expected an integer"),
    ("gptj", {"rotary": False}, "rotary = False: only true"),
    (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "residuals are taken",
    ),
    ("bloom", {"n_inner": 72}, "n_inner = 72: only 192 or null is supported"),
    ("bloom", {"n_embed": 50}, "n_embed = 50: contradicts hidden_size = 48"),
    ("chatglm", {"rmsnorm": False}, "rmsnorm = False: only true"),
    (
        "chatglm",
        {"multi_query_attention": False},
        "multi_query_attention = False: only",
    ),
    ("chatglm", {"quantization_bit": 4}, "quantization_bit = 4: only 0 or null"),
    ("chatglm", {"position_encoding_2d": True}, "position_encoding_2d = True: only"),
    ("chatglm", {"pre_seq_len": 128}, "does not know pre_seq_len = 128"),
    ("chatglm", {"vocab_size": 100}, "vocab_size = 100: contradicts padded_vocab_size"),
    ("chatglm", {"kv_channels": 6}, "kv_channels = 6: rotates 3 dimensions"),
    ("chatglm", {"_name_or_path": None}, "rope_ratio = 2: ChatGLM2 divides positions"),
    (
        "chatglm",
        {"_name_or_path": "/data/run-7", "rope_ratio": 16},
        'rope_ratio = 16: .*_name_or_path = "/data/run-7" .*hf_overrides=',
    ),
    (
        "chatglm",
        {"_name_or_path": "chatglm2-against-chatglm3"},
        "rope_ratio = 2: .*_name_or_path = .chatglm2-against-chatglm3",
    ),
    ("chatglm", {"_name_or_path": "chatglm20"}, "rope_ratio = 2: .*chatglm20"),
    (
        "chatglm",
        {"_name_or_path": "THUDM/chatglm2-6b-32k", "padded_vocab_size": 151_552},
        "rope_ratio = 2: .*THUDM/chatglm2-6b-32k",
    ),
)


@pytest.mark.parametrize(("family", "fields", "message"), REFUSED)
def test_refuses_and_names_the_field(family: str, fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(hf_config(family) | fields)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", [False, None, 0, "", []])
def test_attention_to_later_tokens_is_refused(family: str, value: object):
    config = hf_config(family)
    message = rf"is_causal = {re.escape(repr(value))}: only true is supported"
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(config | {"is_causal": value})
    assert ModelConfig.from_hf(config | {"is_causal": True}) == ModelConfig.from_hf(
        config
    )


@pytest.mark.parametrize("family", ["llama", "glm", "glm4"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("value", [1e308, math.nan, math.inf, -0.5, 0, 1.0001, 2])
def test_rotates_a_part_of_a_head(family: str, inside: bool, value: float):
    config = hf_config(family)
    config["rope_parameters"].pop("partial_rotary_factor", None)
    owner = config["rope_parameters"] if inside else config
    owner["partial_rotary_factor"] = value
    message = f"partial_rotary_factor = {value}: must be above 0 and at most 1"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize("family", ["glm", "glm4"])
@pytest.mark.parametrize("inside", [False, True])
def test_glm_does_not_guess_which_part_null_is(family: str, inside: bool):
    """Transformers rotates whole heads then, and half of each if it is absent."""
    config = hf_config(family)
    del config["rope_parameters"]["partial_rotary_factor"]
    owner = config["rope_parameters"] if inside else config
    owner["partial_rotary_factor"] = None
    with pytest.raises(ConfigError, match=r"partial_rotary_factor = None: .*number"):
        ModelConfig.from_hf(config)
    stated = ModelConfig.from_hf(hf_config(family) | {"partial_rotary_factor": None})
    assert stated == ModelConfig.from_hf(hf_config(family))


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", "mrope"])
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_unsupported_rope_scaling_is_named(kind: str, spelling: str):
    config = hf_config("qwen3")
    del config["rope_parameters"]
    config["rope_scaling"] = {spelling: kind, "factor": 4.0}
    message = rf"rope_scaling\.{spelling} = '{kind}': supported are default, linear"
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(config)


def test_classes_of_one_family_and_no_model_type_are_no_contradiction():
    config = hf_config("bloom")
    named = {"architectures": ["BloomModel", "BloomForCausalLM"], "model_type": None}
    assert ModelConfig.from_hf(config | named) == ModelConfig.from_hf(config)
    del config["model_type"]
    assert family_of(config).name == "bloom"


def test_code_of_a_repository_is_named_and_not_needed():
    code = {"auto_map": {"AutoModelForCausalLM": "modeling.Wombat"}}
    with pytest.raises(ConfigError, match=r"auto_map.*never run"):
        family_of({"architectures": ["Wombat"], **code})
    known = hf_config("chatglm")
    assert ModelConfig.from_hf(known | code) == ModelConfig.from_hf(known)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "factor", "type"]), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_change_of_one_field_maps_or_is_a_config_error(data: st.DataObject):
    config = hf_config(data.draw(st.sampled_from(sorted(FAMILIES))))
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(JSON)
    try:
        model = ModelConfig.from_hf(config)
    except ConfigError as error:
        assert "config.json" in str(error)
    else:
        assert model.layers
