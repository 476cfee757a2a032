"""The weight products of a model: four in a layer, and the head."""

import jax

from fdjax.kernels.matmul.tuning import Weight
from fdjax.models.config import ModelConfig
from fdjax.models.weights import parameter_shapes


def products(config: ModelConfig, *, dtype: jax.typing.DTypeLike) -> tuple[Weight, ...]:
    """The weights of one layer's products, which all layers share, and the head's.

    Args:
        config: the model.
        dtype: of its weights.

    Raises:
        ConfigError: `dtype` is not bfloat16, float16 or float32.
    """
    shapes = parameter_shapes(config, dtype=dtype)
    gated = config.mlp.gated
    head = "embed.weight" if config.embedding.tied else "head.weight"
    paths = {
        "qkv": "layers.0.attention.qkv.weight",
        "out": "layers.0.attention.out.weight",
        "gate_up" if gated else "up": "layers.0.mlp.up.weight",
        "down": "layers.0.mlp.down.weight",
        "head": head,
    }
    return tuple(
        Weight(name, *shapes[path].shape, dtype=dtype, gated=name == "gate_up")
        for name, path in paths.items()
    )
