"""The declared fields that instructions consume; every other is refused by name."""

from fdjax.config import (
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
from fdjax.config.accepted import Accepted

_NORM = RmsNorm | LayerNorm
_MLP = {"size": int, "activation": str, "bias": bool}

ACCEPTED: Accepted = {
    LayerSpec: {
        "attention": Attention,
        "mlp": Mlp | GatedMlp,
        "attention_norm": _NORM,
        "mlp_norm": _NORM | None,
        "attention_post_norm": _NORM | None,
        "mlp_post_norm": _NORM | None,
    },
    Attention: {
        "num_heads": int,
        "num_kv_heads": int,
        "head_dim": int,
        "scale": float,
        "positions": Rope | Alibi | None,
        "window": int | None,
        "qkv_bias": bool,
        "out_bias": bool,
        "qk_norm": _NORM | None,
        "soft_cap": float | None,
    },
    Mlp: _MLP,
    GatedMlp: _MLP,
    RmsNorm: {"epsilon": float, "scale_offset": float},
    LayerNorm: {"epsilon": float},
    Rope: {
        "theta": float,
        "rotary_dim": int,
        "interleaved": bool,
        "scaling": LinearScaling | Llama3Scaling | None,
    },
    LinearScaling: {"factor": float},
    Llama3Scaling: {
        "factor": float,
        "low_freq_factor": float,
        "high_freq_factor": float,
        "original_max_position": int,
    },
    Alibi: {},
    Embedding: {
        "vocab_size": int,
        "tied": bool,
        "scale": float | None,
        "positions": Learned | None,
        "norm": _NORM | None,
        "head_bias": bool,
        "soft_cap": float | None,
    },
    Learned: {"size": int, "offset": int},
}
