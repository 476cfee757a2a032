"""Small random models, as data: what every family is compared on.

Sizes are odd on purpose: heads that are no power of two, vocabularies and
feed-forward sizes that fill no tile, windows shorter than the prompts. `hf_shapes`
adds the head sizes and groups that are missing here.
"""

from tests.support.hf_model import HfModel, opt_sizes, sizes
from tests.support.hf_shapes import SHAPES

_LLAMA = (
    HfModel(
        "llama",
        "LlamaForCausalLM",
        sizes(hidden=24, ffn=77, layers=3, heads=6, kv_heads=2, head=64),
        seed=1,
    ),
    HfModel(
        "llama_tied",
        "LlamaForCausalLM",
        sizes(hidden=24, ffn=77, layers=3, heads=8, kv_heads=1, head=64)
        | {"tie_word_embeddings": True},
        seed=2,
    ),
    HfModel(
        "llama_rope_llama3",
        "LlamaForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=3, kv_heads=3, head=80)
        | {
            # Short enough that frequencies fall below, between and above the bounds.
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        seed=3,
    ),
    HfModel(
        "llama_rope_linear",
        "LlamaForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=3, kv_heads=1, head=64)
        | {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 10000.0,
                "factor": 4.0,
            }
        },
        seed=4,
        spelling="published",
        published={"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    HfModel(
        "llama_bias",
        "LlamaForCausalLM",
        sizes(hidden=48, ffn=77, layers=3, heads=6, kv_heads=2, head=None)
        | {"attention_bias": True, "mlp_bias": True},
        seed=5,
        spelling="published",
        published={"head_dim": None},
    ),
)

_MISTRAL = (
    HfModel(
        "mistral_window",
        "MistralForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=6, kv_heads=2, head=64)
        | {"sliding_window": 7},
        seed=6,
    ),
    HfModel(
        "mistral",
        "MistralForCausalLM",
        sizes(hidden=48, ffn=93, layers=3, heads=3, kv_heads=1, head=None)
        | {"sliding_window": None},
        seed=7,
        spelling="published",
        published={"head_dim": None},
    ),
)

_QWEN = (
    HfModel(
        "qwen2",
        "Qwen2ForCausalLM",
        sizes(hidden=96, ffn=77, layers=3, heads=6, kv_heads=2, head=None)
        | {"tie_word_embeddings": True, "sliding_window": 6, "max_window_layers": 1},
        seed=8,
        spelling="published",
        published={"sliding_window": 6, "layer_types": None},
    ),
    HfModel(
        "qwen2_window",
        "Qwen2ForCausalLM",
        sizes(hidden=80, ffn=101, layers=3, heads=5, kv_heads=1, head=None)
        | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        seed=9,
    ),
    HfModel(
        "qwen3",
        "Qwen3ForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=8, kv_heads=1, head=128),
        seed=10,
    ),
    HfModel(
        "qwen3_tied",
        "Qwen3ForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=6, kv_heads=2, head=96)
        | {"tie_word_embeddings": True},
        seed=11,
        spelling="published",
        published={"layer_types": None},
    ),
)

_OPT = (
    HfModel(
        "opt",
        "OPTForCausalLM",
        opt_sizes(hidden=128, ffn=77, layers=1, heads=2),
        seed=12,
    ),
    HfModel(
        "opt_untied",
        "OPTForCausalLM",
        opt_sizes(hidden=80, ffn=101, layers=3, heads=5)
        | {"tie_word_embeddings": False},
        seed=13,
    ),
    HfModel(
        "opt_published",
        "OPTForCausalLM",
        opt_sizes(hidden=48, ffn=77, layers=3, heads=3),
        seed=14,
        spelling="published",
        published={"tie_word_embeddings": None},
        prefix="model.",
    ),
)

_GLM_SIZES = sizes(hidden=24, ffn=77, layers=2, heads=6, kv_heads=2, head=64)
_GLM_TOKENS = {"pad_token_id": 0, "eos_token_id": [1, 2, 3]}

_GLM = (
    HfModel("glm", "GlmForCausalLM", _GLM_SIZES | _GLM_TOKENS, seed=15),
    HfModel(
        "glm_plain",
        "GlmForCausalLM",
        sizes(hidden=48, ffn=93, layers=3, heads=3, kv_heads=1, head=32)
        | _GLM_TOKENS
        | {"attention_bias": False, "tie_word_embeddings": True},
        seed=16,
        spelling="published",
    ),
    HfModel(
        "glm4",
        "Glm4ForCausalLM",
        sizes(hidden=24, ffn=77, layers=2, heads=3, kv_heads=1, head=96) | _GLM_TOKENS,
        seed=17,
    ),
    HfModel(
        "glm4_plain",
        "Glm4ForCausalLM",
        sizes(hidden=48, ffn=77, layers=3, heads=6, kv_heads=2, head=32)
        | _GLM_TOKENS
        | {"attention_bias": False},
        seed=18,
        spelling="published",
    ),
    HfModel(
        "chatglm",
        "GlmForCausalLM",
        _GLM_SIZES | _GLM_TOKENS,
        seed=19,
        chatglm=True,
    ),
    HfModel(
        "chatglm_rope_ratio",
        "GlmForCausalLM",
        sizes(hidden=48, ffn=93, layers=3, heads=3, kv_heads=1, head=32)
        | _GLM_TOKENS
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500000.0,
                "partial_rotary_factor": 0.5,
            }
        },
        seed=20,
        chatglm=True,
    ),
)

_NORM = {"layer_norm_epsilon": 1e-3, "vocab_size": 131}

_GPTJ = (
    HfModel(
        "gptj",
        "GPTJForCausalLM",
        {
            "n_embd": 128,
            "n_layer": 1,
            "n_head": 2,
            "n_inner": 77,
            "rotary_dim": 16,
            "n_positions": 128,
        }
        | _NORM
        | {"bos_token_id": 1, "eos_token_id": 2},
        seed=21,
    ),
    HfModel(
        "gptj_published",
        "GPTJForCausalLM",
        {
            "n_embd": 80,
            "n_layer": 2,
            "n_head": 5,
            "rotary_dim": 16,
            "n_positions": 64,
        }
        | _NORM
        | {"bos_token_id": 1, "eos_token_id": 2},
        seed=22,
        spelling="published",
        published={"rotary": True, "scale_attn_weights": True},
    ),
)

_BLOOM = (
    HfModel(
        "bloom",
        "BloomForCausalLM",
        {"hidden_size": 128, "n_layer": 1, "n_head": 2} | _NORM,
        seed=23,
    ),
    HfModel(
        "bloom_published",
        "BloomForCausalLM",
        {"hidden_size": 80, "n_layer": 2, "n_head": 5} | _NORM,
        seed=24,
        spelling="published",
        published=dict.fromkeys(("hidden_size", "n_head", "n_inner"))
        | dict.fromkeys(("skip_bias_add", "attention_softmax_in_fp32"), True)
        | dict.fromkeys(("bias_dropout_fusion", "masked_softmax_fusion"), True)
        | {"n_embed": 80, "num_attention_heads": 5, "offset_alibi": 100}
        | {"skip_bias_add_qkv": False, "unk_token_id": 0, "tie_word_embeddings": None},
        prefix="transformer.",
    ),
)

# Caps near the size of the scores and logits: far larger ones would change nothing.
_GEMMA2_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}

_GEMMA2 = (
    HfModel(
        "gemma2",
        "Gemma2ForCausalLM",
        sizes(hidden=24, ffn=77, layers=3, heads=6, kv_heads=2, head=64)
        | _GEMMA2_CAPS
        | {"sliding_window": 7, "query_pre_attn_scalar": 33},
        seed=25,
    ),
    HfModel(
        "gemma2_uncapped",
        "Gemma2ForCausalLM",
        sizes(hidden=24, ffn=93, layers=2, heads=2, kv_heads=2, head=96)
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "sliding_window": 6,
            "query_pre_attn_scalar": 96,
        },
        seed=26,
        spelling="published",
        published={
            "tie_word_embeddings": None,
            "layer_types": None,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
)

MODELS: tuple[HfModel, ...] = (
    *_LLAMA,
    *_MISTRAL,
    *_QWEN,
    *_OPT,
    *_GLM,
    *_GPTJ,
    *_BLOOM,
    *_GEMMA2,
    *SHAPES,
)
