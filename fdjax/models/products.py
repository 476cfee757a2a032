"""The weight products of a model: four in a layer, and the head."""

import jax

from fdjax.config import GatedMlp
from fdjax.kernels.matmul.tuning import Weight
from fdjax.models.config import ModelConfig
from fdjax.models.weights import parameter_shapes


def products(config: ModelConfig, *, dtype: jax.typing.DTypeLike) -> tuple[Weight, ...]:
    """The weights of the layers' products, those of one shape once, and the head's.

    Args:
        config: the model.
        dtype: of its weights.

    Raises:
        ConfigError: `dtype` is not bfloat16, float16 or float32.
    """
    shapes = parameter_shapes(config, dtype=dtype)

    def weight(name: str, path: str) -> Weight:
        shape = shapes[f"{path}.weight"].shape
        return Weight(name, *shape, dtype=dtype, gated=name == "gate_up")

    found: dict[Weight, None] = {}
    for kind in config.kinds:
        layer = f"layers.{config.layers.index(kind)}"
        up = "gate_up" if isinstance(kind.mlp, GatedMlp) else "up"
        found[weight("qkv", f"{layer}.attention.qkv")] = None
        found[weight("out", f"{layer}.attention.out")] = None
        found[weight(up, f"{layer}.mlp.up")] = None
        found[weight("down", f"{layer}.mlp.down")] = None
    return (*found, weight("head", "embed" if config.embedding.tied else "head"))
