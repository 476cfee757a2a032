"""Which implementation serves each operation of a decode step."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from fdjax.config import Rope
from fdjax.kernels import (
    decode_attention,
    gated_activation,
    layer_norm,
    matmul,
    rms_norm,
    rope_kv_write,
)
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig
from fdjax.models.weights import parameter_shapes
from fdjax.serve.setup import Settings

# Rows of the decode step that is explained; kernels for few rows serve up to here.
NUM_ROWS = 8


def explanations(settings: Settings, plan: MemoryPlan) -> list[str]:
    """One line an operation; operations of one answer for several shapes appear once.

    Args:
        settings: the model and its type.
        plan: gives the KV array's shape.
    """
    rows = min(NUM_ROWS, settings.max_num_seqs)
    lines: dict[str, None] = {}
    for explain in _calls(settings, plan, rows):
        lines[explain()] = None
    return list(lines)


def _calls(
    settings: Settings, plan: MemoryPlan, rows: int
) -> Iterator[Callable[[], str]]:
    config, dtype = settings.config, settings.dtype

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    return iter(())
