"""Small random models that give every family the head sizes and groups of the others.

One narrow layer each: the features of a family are in `hf_models`, here are shapes. A
family without a field for the head size gets it from its hidden size, with one head.
"""

from typing import Any

from tests.support.hf_model import HfModel, opt_sizes, sizes

_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}

_GLM_TOKENS = {"pad_token_id": 0, "eos_token_id": [1, 2, 3]}
_GLM_LINEAR = {
    "rope_parameters": {
        "rope_type": "linear",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "partial_rotary_factor": 0.5,
    }
}

_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    # The class reads a head size, though its configuration has no field for one.
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "glm": ("GlmForCausalLM", _GLM_TOKENS),
    "glm4": ("Glm4ForCausalLM", _GLM_TOKENS),
    "chatglm": ("GlmForCausalLM", _GLM_TOKENS),
    "gemma2": ("Gemma2ForCausalLM", {}),
}


def _grouped(
    family: str, heads: int, kv_heads: int, head: int, *more: dict[str, Any], seed: int
) -> HfModel:
    """A model whose query heads share key/value heads, with the fields `more`."""
    architecture, fields = _CLASSES[family]
    # transformers wants a multiple of the heads, though heads have their own size.
    hidden = 16 if heads == 8 else 12
    config = sizes(
        hidden=hidden, ffn=29, layers=1, heads=heads, kv_heads=kv_heads, head=head
    )
    for each in ({"vocab_size": 67}, fields, *more):
        config |= each
    name, chatglm = f"{family}_{head}", family == "chatglm"
    return HfModel(name, architecture, config, seed=seed, chatglm=chatglm)


_GROUPED = (
    _grouped("llama", 3, 1, 96, _TIED, seed=27),
    _grouped("llama", 3, 3, 128, seed=28),
    _grouped("mistral", 8, 1, 80, {"sliding_window": 6}, seed=29),
    _grouped("mistral", 3, 1, 96, _TIED, seed=30),
    _grouped("mistral", 3, 3, 128, seed=31),
    _grouped("qwen2", 6, 2, 64, seed=32),
    _grouped("qwen2", 8, 1, 80, seed=33),
    _grouped("qwen2", 3, 1, 96, _TIED, seed=34),
    _grouped("qwen2", 3, 3, 128, seed=35),
    _grouped("qwen3", 3, 3, 64, seed=36),
    _grouped("qwen3", 8, 1, 80, seed=37),
    _grouped("glm", 8, 1, 80, seed=38),
    _grouped("glm", 3, 1, 96, seed=39),
    _grouped("glm", 3, 3, 128, seed=40),
    _grouped("glm4", 8, 1, 64, _TIED, seed=41),
    _grouped("glm4", 3, 1, 80, seed=42),
    _grouped("glm4", 3, 3, 128, seed=43),
    _grouped("chatglm", 8, 1, 80, seed=44),
    # As ChatGLM2-6B-32K, which divides positions by its "rope_ratio".
    _grouped("chatglm", 3, 1, 96, _GLM_LINEAR, seed=45),
    _grouped("chatglm", 3, 3, 128, seed=46),
    _grouped("gemma2", 8, 1, 80, _UNTIED, seed=47),
    _grouped("gemma2", 3, 3, 128, _UNTIED, seed=48),
)

_OPT = tuple(
    HfModel(
        f"opt_{head}",
        "OPTForCausalLM",
        opt_sizes(hidden=head, ffn=29, layers=1, heads=1),
        seed=seed,
    )
    for head, seed in ((80, 49), (96, 50), (128, 51))
)

_NORM = {"layer_norm_epsilon": 1e-3, "vocab_size": 131}

_GPTJ = tuple(
    HfModel(
        f"gptj_{head}",
        "GPTJForCausalLM",
        {"n_embd": head, "n_layer": 1, "n_head": 1, "n_inner": 29}
        | {"rotary_dim": head // 4, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2}
        | _NORM
        | tying,
        seed=seed,
    )
    for head, tying, seed in ((80, _UNTIED, 52), (96, _UNTIED, 53), (128, _TIED, 54))
)

# Untied and seldom varied: positions are one weak slope, and a tied layer would echo.
_BLOOM = tuple(
    HfModel(
        f"bloom_{head}",
        "BloomForCausalLM",
        {"hidden_size": head, "n_layer": 1, "n_head": 1} | _NORM | _UNTIED,
        seed=seed,
        distinct=16,
    )
    for head, seed in ((80, 55), (96, 56), (128, 57))
)

SHAPES: tuple[HfModel, ...] = (*_GROUPED, *_OPT, *_GPTJ, *_BLOOM)
