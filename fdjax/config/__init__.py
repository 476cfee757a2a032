"""The words in which a model's mathematics is declared."""

from fdjax.config.specs import (
    Activation,
    Alibi,
    Attention,
    Embedding,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    Positions,
    Rope,
    RopeScaling,
)

__all__ = [
    "Activation",
    "Alibi",
    "Attention",
    "Embedding",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "Mlp",
    "Norm",
    "Positions",
    "Rope",
    "RopeScaling",
]
