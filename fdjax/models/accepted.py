"""The declared fields that are consumed, with their values: no others pass."""

from typing import get_args

from fdjax.config import (
    Activation,
    Alibi,
    Attention,
    Embedding,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    RmsNorm,
    Rope,
)
from fdjax.config.accepted import (
    COUNT,
    FINITE,
    ORDINAL,
    POSITIVE,
    Accepted,
    Each,
    Wanted,
    one_of,
)
from fdjax.kernels.decode_attention.unified import UnifiedMax

_NORM = RmsNorm | LayerNorm
_MLP = {
    "size": COUNT,
    "activation": one_of(*get_args(Activation.__value__)),
    "bias": bool,
}

PARTS: Accepted = {
    LayerSpec: {
        "attention": Attention,
        "mlp": Mlp | GatedMlp,
        "attention_norm": _NORM,
        "mlp_norm": _NORM | None,
        "attention_post_norm": _NORM | None,
        "mlp_post_norm": _NORM | None,
    },
    Attention: {
        "num_heads": COUNT,
        "num_kv_heads": COUNT,
        "head_dim": COUNT,
        "scale": POSITIVE,
        "positions": Rope | Alibi | None,
        "window": COUNT.or_none,
        "qkv_bias": bool,
        "out_bias": bool,
        "qk_norm": _NORM | None,
        "soft_cap": POSITIVE.or_none,
    },
    Mlp: _MLP,
    GatedMlp: _MLP,
    RmsNorm: {"epsilon": POSITIVE, "scale_offset": FINITE},
    LayerNorm: {"epsilon": POSITIVE},
    Rope: {
        "theta": POSITIVE,
        "rotary_dim": COUNT,
        "interleaved": bool,
        "scaling": LinearScaling | Llama3Scaling | None,
    },
    LinearScaling: {"factor": POSITIVE},
    Llama3Scaling: {
        "factor": POSITIVE,
        "low_freq_factor": POSITIVE,
        "high_freq_factor": POSITIVE,
        "original_max_position": COUNT,
    },
    Alibi: {},
    Embedding: {
        "vocab_size": COUNT,
        "tied": bool,
        "scale": POSITIVE.or_none,
        "positions": Learned | None,
        "norm": _NORM | None,
        "head_bias": bool,
        "soft_cap": POSITIVE.or_none,
    },
    Learned: {"size": COUNT, "offset": ORDINAL},
    UnifiedMax: {"phi": int | float, "low": int | float, "high": int | float},
}
"""By instructions of a step's program."""

BY_PROGRAM: dict[str, Wanted] = {
    "hidden_size": COUNT,
    "layers": Each(LayerSpec),
    "embedding": Embedding,
    "final_norm": _NORM,
    "unified": UnifiedMax | None,
}
"""Of a `ModelConfig`: likewise."""

BY_OTHERS: dict[str, Wanted] = {
    "family": str,  # the rules of weights
    "max_position": COUNT,  # the longest sequence served
    "bos_token_id": ORDINAL.or_none,  # told only: tokenizers put it first
    "eos_token_ids": Each(ORDINAL),  # the ends of outputs
    "dtype": one_of("float16", "bfloat16", "float32"),  # that of parameters
    "batch_invariant": bool,  # which implementations may serve
}
"""Of a `ModelConfig`: what does not change a program."""
