"""Which implementation serves each operation of a decode step."""

from collections.abc import Iterator
from typing import Any

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
from fdjax.kernels.op import Op
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig
from fdjax.serve.setup import Settings

# Rows of the decode step that is explained; kernels for few rows serve this many.
NUM_ROWS = 8


def explanations(settings: Settings, plan: MemoryPlan) -> list[str]:
    """One line an operation of the first layer, and why others do not serve it.

    Args:
        settings: the model and its type.
        plan: gives the KV array's shape.
    """
    config = settings.config
    lines = [
        _normalisation(config, settings.dtype),
        *_products(config, settings.dtype),
        *_attention(config, settings.dtype, plan),
    ]
    if config.mlp.gated:
        gate_up = _array(settings.dtype, NUM_ROWS, 2 * config.mlp.size)
        activation = config.mlp.activation
        lines.append(_explain(gated_activation.OP, gate_up, activation=activation))
    return lines


def _normalisation(config: ModelConfig, dtype: Any) -> str:
    x = _array(dtype, NUM_ROWS, config.hidden_size)
    scale = _array(dtype, config.hidden_size)
    norm = config.norm
    if norm.kind == "layer":
        return _explain(layer_norm.OP, x, scale, scale, epsilon=norm.epsilon)
    return _explain(
        rms_norm.OP, x, scale, epsilon=norm.epsilon, scale_offset=norm.scale_offset
    )


def _products(config: ModelConfig, dtype: Any) -> Iterator[str]:
    """The products with a weight `[N, K]`; only where their answers differ."""
    hidden, attention = config.hidden_size, config.attention
    heads = attention.num_heads + 2 * attention.num_kv_heads
    shapes = {
        "qkv": (heads * attention.head_dim, hidden),
        "out": (hidden, attention.num_heads * attention.head_dim),
        "up": (config.mlp.size * (2 if config.mlp.gated else 1), hidden),
        "down": (hidden, config.mlp.size),
        "head": (config.embedding.vocab_size, hidden),
    }
    for role, (n, k) in shapes.items():
        x, weight = _array(dtype, NUM_ROWS, k), _array(dtype, n, k)
        out_dtype = jnp.dtype(jnp.float32) if role == "head" else dtype
        line = _explain(matmul.OP, x, weight, None, out_dtype=out_dtype)
        name, _, answer = line.partition(":")
        yield f"{name} {role} [{n}, {k}]:{answer}"


def _attention(config: ModelConfig, dtype: Any, plan: MemoryPlan) -> Iterator[str]:
    spec, layout = config.attention, plan.layout
    kv = jax.ShapeDtypeStruct(layout.shape, dtype)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    positions = config.positions
    rotated = positions.rotary_dim if isinstance(positions, Rope) else 0
    each = _array(jnp.int32, NUM_ROWS)
    yield _explain(
        rope_kv_write.OP,
        _array(dtype, NUM_ROWS, heads, spec.head_dim),
        kv,
        each,
        each,
        _array(jnp.float32, rotated // 2),
        layer=0,
        interleaved=isinstance(positions, Rope) and positions.interleaved,
    )
    yield _explain(
        decode_attention.OP,
        _array(dtype, NUM_ROWS, spec.num_heads, spec.head_dim),
        kv,
        _array(jnp.int32, NUM_ROWS, layout.pages_for(plan.max_model_len)),
        each,
        None,
        layer=0,
        scale=spec.scale,
        soft_cap=spec.soft_cap,
        window=config.windows[0],
    )


def _array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _explain(op: Op[..., Any], *shapes: Any, **scalars: Any) -> str:
    """What `op.explain` says of arrays of these shapes; none is allocated."""
    lines: list[str] = []

    def ask(*arrays: Any) -> None:
        lines.append(op.explain(*arrays, **scalars))

    jax.eval_shape(ask, *shapes)
    return lines[0]
