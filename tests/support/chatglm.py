"""ChatGLM2's names for the weights and the fields of a transformers GLM.

Only the published checkpoints define ChatGLM2 and 3; transformers has no class for
them. Their layers compute what its GLM computes, with q, k and v fused.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (group parity)

_LAYER_NAMES = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.dense.weight",
    "mlp.gate_up_proj.weight": "mlp.dense_h_to_4h.weight",
    "mlp.down_proj.weight": "mlp.dense_4h_to_h.weight",
}

_NAMES = {
    "model.embed_tokens.weight": "transformer.embedding.word_embeddings.weight",
    "model.norm.weight": "transformer.encoder.final_layernorm.weight",
    "lm_head.weight": "transformer.output_layer.weight",
}


def config(glm: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of ChatGLM2 for the fields of a GLM's."""
    return {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "add_bias_linear": False,
        "add_qkv_bias": glm["attention_bias"],
        "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "ffn_hidden_size": glm["intermediate_size"],
        "fp32_residual_connection": False,
        "hidden_dropout": 0.0,
        "hidden_size": glm["hidden_size"],
        "kv_channels": glm["head_dim"],
        "layernorm_epsilon": glm["rms_norm_eps"],
        "multi_query_attention": True,
        "multi_query_group_num": glm["num_key_value_heads"],
        "num_attention_heads": glm["num_attention_heads"],
        "num_layers": glm["num_hidden_layers"],
        "original_rope": True,
        "padded_vocab_size": glm["vocab_size"],
        "post_layer_norm": True,
        "quantization_bit": 0,
        "rmsnorm": True,
        **_rope(glm["rope_parameters"]),
        "seq_length": glm["max_position_embeddings"],
        "use_cache": True,
        "torch_dtype": "float16",
        "transformers_version": "4.27.1",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _rope(glm: Mapping[str, Any]) -> dict[str, Any]:
    """What long texts change, and the name, which alone says what the ratio means."""
    if glm["rope_type"] == "linear":
        return {"rope_ratio": glm["factor"], "_name_or_path": "THUDM/chatglm2-6b-32k"}
    ratio = glm["rope_theta"] / 10000
    named = {} if ratio == 1 else {"_name_or_path": "THUDM/chatglm3-6b-32k"}
    return {"rope_ratio": ratio} | named


def weights(
    glm: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The weights of a GLM, renamed, with q, k and v fused as ChatGLM2 fuses them."""
    renamed = {new: tensors[old] for old, new in _NAMES.items()}
    for layer in range(glm["num_hidden_layers"]):
        old, new = f"model.layers.{layer}", f"transformer.encoder.layers.{layer}"
        for source, target in _LAYER_NAMES.items():
            renamed[f"{new}.{target}"] = tensors[f"{old}.{source}"]
        for kind in ("weight", "bias"):
            fused = [tensors[f"{old}.self_attn.{x}_proj.{kind}"] for x in "qkv"]
            target = f"{new}.self_attention.query_key_value.{kind}"
            renamed[target] = torch.cat(fused)
    assert len(renamed) == _count_after_fusing(tensors), "a weight was left behind"
    rotary = torch.arange(0, glm["head_dim"] // 2, 2) / (glm["head_dim"] // 2)
    theta = glm["rope_parameters"]["rope_theta"]
    renamed["transformer.rotary_pos_emb.inv_freq"] = 1 / theta**rotary
    return renamed


def _count_after_fusing(tensors: Mapping[str, torch.Tensor]) -> int:
    return len({re.sub(r"\.[qkv]_proj\.", ".qkv.", name) for name in tensors})
