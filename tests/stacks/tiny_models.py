"""Folders of tiny checkpoints with random weights, as Hugging Face lays them out."""

import json
import pathlib
from typing import Literal

import numpy as np
from safetensors.numpy import save_file

LAYERS, HIDDEN, WIDE, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 96, 128, 4, 2, 128

type Family = Literal["llama", "qwen3"]


def make(folder: pathlib.Path, family: Family) -> pathlib.Path:
    """Writes one.

    Args:
        folder: is made.
        family: Llama without biases, or Qwen 3 with norms of queries and keys.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    shapes = _shapes(family)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(family)))
    return folder


def _shapes(family: Family) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        here = f"model.layers.{layer}"
        shapes |= {
            f"{here}.input_layernorm.weight": (HIDDEN,),
            f"{here}.post_attention_layernorm.weight": (HIDDEN,),
            f"{here}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{here}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{here}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{here}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{here}.mlp.gate_proj.weight": (WIDE, HIDDEN),
            f"{here}.mlp.up_proj.weight": (WIDE, HIDDEN),
            f"{here}.mlp.down_proj.weight": (HIDDEN, WIDE),
        }
        if family == "qwen3":
            shapes |= {
                f"{here}.self_attn.q_norm.weight": (HEAD_DIM,),
                f"{here}.self_attn.k_norm.weight": (HEAD_DIM,),
            }
    return shapes


def _config(family: Family) -> dict[str, object]:
    name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
    return {
        "architectures": [name],
        "model_type": family,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "max_position_embeddings": 256,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "vocab_size": VOCAB,
    }
