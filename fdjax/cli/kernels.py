"""Which implementation serves each operation of a decode step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.generate.steps import decode, extend
from fdjax.kernels.draw import draw
from fdjax.kernels.reporting import recording
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.serve.setup import Settings

# Rows of the decode step that is explained; kernels for few rows serve this many.
NUM_ROWS = 8


# Tokens of the prefill call that is explained.
NUM_TOKENS = 256


def explanations(settings: Settings, plan: MemoryPlan) -> list[str]:
    """One line for each operation and each answer to which implementation serves it.

    A decode step of a layer of each kind is traced, not run: nothing is allocated.

    Args:
        settings: the model and its type.
        plan: gives the KV array's shape.
    """
    with recording() as lines:
        _trace(settings, plan, prefill=False)
    return list(dict.fromkeys(lines))


def all_explanations(settings: Settings, plan: MemoryPlan) -> list[str]:
    """`explanations`, and those of a prefill and of drawing tokens."""
    rows = jax.ShapeDtypeStruct((NUM_ROWS,), jnp.float32)
    steps = jax.ShapeDtypeStruct((NUM_ROWS,), jnp.int32)
    keys = jax.ShapeDtypeStruct((NUM_ROWS, 2), jnp.uint32)
    with recording() as lines:
        logits = _trace(settings, plan, prefill=False)
        _trace(settings, plan, prefill=True)
        _traced(draw, logits, keys, steps, rows)
    return list(dict.fromkeys(lines))


def _trace(
    settings: Settings, plan: MemoryPlan, *, prefill: bool
) -> jax.ShapeDtypeStruct:
    """Traces a step of one layer of each kind; its logits."""
    config = dataclasses.replace(settings.config, layers=settings.config.kinds)
    layout = dataclasses.replace(plan.layout, num_layers=config.num_layers)
    width = layout.pages_for(plan.max_model_len)
    each = jax.ShapeDtypeStruct((NUM_ROWS,), jnp.int32)
    tokens = jax.ShapeDtypeStruct((NUM_TOKENS,), jnp.int32) if prefill else each
    logits, _ = _traced(
        extend if prefill else decode,
        Decoder(config, settings.dtype),
        jax.eval_shape(layout.allocate),
        tokens,
        each,
        jax.ShapeDtypeStruct((NUM_ROWS, width), jnp.int32),
        *([each] if prefill else []),
    )
    return logits


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `jax.eval_shape` says, which does not trace a function twice."""

    def anew(*given: Any) -> Any:
        return function(*given)

    return jax.eval_shape(anew, *arguments)
