"""Hugging Face configurations of small models, one for each family."""

import copy
import json
import pathlib
from functools import cache
from typing import Any

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"

# Sizes that no class has as its default, and that differ from one another.
_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
# Heads that fit the classes' own key/value heads and rotated dimensions.
_DEFAULT_SIZES = _SIZES | {"hidden_size": 2048, "num_attention_heads": 32}
_COMMON: dict[str, Any] = {
    **{"bos_token_id": 3, "eos_token_id": [4, 5], "dtype": "float16"},
    "pad_token_id": 0,
}
_GATED: dict[str, Any] = {
    **_COMMON,
    "max_position_embeddings": 96,
    **{"num_key_value_heads": 2, "intermediate_size": 72, "rms_norm_eps": 3e-5},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
_GLM_ROPE: dict[str, Any] = {
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 5000.0},
        "partial_rotary_factor": 0.5,
    }
}

_FIELDS: dict[str, dict[str, Any]] = {
    "llama": {
        **_GATED,
        **{"head_dim": 10, "attention_bias": True, "mlp_bias": True},
        "hidden_act": "gelu",
    },
    "mistral": {**_GATED, "sliding_window": 17},
    "qwen2": {
        **_GATED,
        **{"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 2},
        "tie_word_embeddings": True,
    },
    "qwen3": {**_GATED, "head_dim": 10, "attention_bias": True},
    "gemma2": {
        **_GATED,
        **{"head_dim": 10, "sliding_window": 17, "query_pre_attn_scalar": 12},
        **{"final_logit_softcapping": 20.0, "attn_logit_softcapping": 40.0},
        "tie_word_embeddings": False,
    },
    "glm": {**_GATED, **_GLM_ROPE, "head_dim": 8},
    "glm4": {**_GATED, **_GLM_ROPE, "head_dim": 8},
    "opt": {**_COMMON, "ffn_dim": 72, "max_position_embeddings": 96},
    "gptj": {
        **_COMMON,
        **{"n_inner": 72, "rotary_dim": 6, "layer_norm_epsilon": 3e-5},
        "n_positions": 96,
    },
    "bloom": {**_COMMON, "layer_norm_epsilon": 3e-5},
}

_ARCHITECTURES = {
    **{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"},
    **{"gemma2": "Gemma2", "glm": "Glm", "glm4": "Glm4"},
    **{"opt": "OPT", "gptj": "GPTJ", "bloom": "Bloom"},
}

# transformers has no class for it: the published file, with small numbers.
_CHATGLM: dict[str, Any] = {
    **{"num_layers": 3, "padded_vocab_size": 101, "hidden_size": 48},
    **{"ffn_hidden_size": 72, "kv_channels": 8, "num_attention_heads": 6},
    **{"multi_query_group_num": 2, "seq_length": 96, "layernorm_epsilon": 3e-5},
    **{"rope_ratio": 2, "_name_or_path": "THUDM/chatglm3-6b-32k"},
    **{"bos_token_id": 3, "eos_token_id": [4, 5], "torch_dtype": "float16"},
}


def published(name: str) -> dict[str, Any]:
    """The file `configs/models/<name>.json`."""
    return json.loads((CONFIGS / f"{name}.json").read_text())


def hf_config(family: str, *, defaults: bool = False) -> dict[str, Any]:
    """A `config.json` of that family, as its own class writes it.

    Args:
        family: name of a family of fdjax.
        defaults: only sizes are set; all other fields are the class's own.
    """
    return copy.deepcopy(_written(family, defaults))


@cache
def _written(family: str, defaults: bool) -> dict[str, Any]:
    if family == "chatglm":
        return published("chatglm2-6b") | _CHATGLM
    from transformers import AutoConfig

    fields = _DEFAULT_SIZES if defaults else _SIZES | _FIELDS[family]
    written = AutoConfig.for_model(family, **fields).to_dict()
    return written | {"architectures": [f"{_ARCHITECTURES[family]}ForCausalLM"]}
