"""The linear maps of a model, each shape once: what a tuner measures."""

import jax

from fdjax.kernels.matmul.tuning import WeightSpec
from fdjax.models.config import ModelConfig
from fdjax.models.program import program_of
from fdjax.models.program.instructions import Head, Linear
from fdjax.models.weights import parameter_shapes


def linears(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike
) -> tuple[WeightSpec, ...]:
    """The weights of a program's linear maps; those of like layers once.

    Args:
        config: the model.
        dtype: of its weights.

    Raises:
        ConfigError: `dtype` is not bfloat16, float16 or float32.
    """
    shapes = parameter_shapes(config, dtype=dtype)
    found: dict[WeightSpec, None] = {}
    for one in program_of(config, selects=False).instructions:
        if not isinstance(one, Linear | Head):
            continue
        gated = isinstance(one, Linear) and one.gate is not None
        shape = shapes[one.weight].shape
        found[WeightSpec(_name(one), *shape, dtype=dtype, gated=gated)] = None
    return tuple(found)


def _name(linear: Linear | Head) -> str:
    """The word for it in tables: qkv, out, gate_up or up, down, head."""
    if isinstance(linear, Head):
        return "head"
    name = linear.weight.split(".")[-2]
    return name if linear.gate is None else f"gate_{name}"
