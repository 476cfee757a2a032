"""All layers of a decode step as one call, for models of the kind that allows it."""

from collections.abc import Sequence

import jax.numpy as jnp

from fdjax.config import Rope
from fdjax.kernels.decoder_stack import (
    OP,
    DecoderStack,
    LayerWeights,
    StackSpec,
    decoder_stack,
)
from fdjax.kernels.op import REFERENCE
from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch
from fdjax.layers.positions import rope_frequencies
from fdjax.models.config import ModelConfig
from fdjax.models.decoder_layer import DecoderLayer
from fdjax.notation import Array, Float, Int32


def unlike_the_stack(config: ModelConfig) -> str | None:
    """Why a model's layers are not of the kind `decoder_stack` computes, or `None`."""
    attention, mlp = config.attention, config.mlp
    problems = (
        (config.norm.kind != "rms", "its norms are not RMS norms"),
        (config.residual != "sequential", "its residuals are parallel"),
        (config.post_norms, "it normalises what layers add"),
        (not isinstance(config.positions, Rope), "its positions are not rotary"),
        (not mlp.gated, "its feed-forward part has no gate"),
        (attention.qk_norm is not None, "it normalises queries and keys"),
        (attention.out_bias or mlp.bias, "products other than QKV have a bias"),
    )
    return next((reason for wrong, reason in problems if wrong), None)


def run_stack(
    config: ModelConfig,
    layers: Sequence[DecoderLayer],
    x: Float[Array, "T E"],
    kv: KVCache,
    batch: Batch,
) -> tuple[Float[Array, "T E"], KVCache, Int32[Array, "L B"]] | None:
    """A decode step's layers as one operation, where an implementation is faster.

    Returns:
        What `decoder_stack` returns, or `None` where the layers had better run one by
        one: in prefill, for models of another kind, and where nothing but the
        reference, which is those same layers, would serve.
    """
    positions = config.positions
    if batch.phase != "decode" or unlike_the_stack(config) is not None:
        return None
    assert isinstance(positions, Rope)
    operands = (
        x,
        kv,
        batch.pages,
        jnp.asarray(rope_frequencies(positions)),
        tuple(_weights(layer) for layer in layers),
    )
    spec = StackSpec(
        windows=config.windows,
        scale=config.attention.scale,
        soft_cap=config.attention.soft_cap,
        interleaved=positions.interleaved,
        epsilon=config.norm.epsilon,
        scale_offset=config.norm.scale_offset,
        activation=config.mlp.activation,
        unified=config.unified,
    )
    if OP.choice(DecoderStack(*operands, spec=spec)) == REFERENCE:
        return None
    return decoder_stack(*operands, spec=spec)


def _weights(layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    assert layer.mlp_norm is not None
    bias = attention.qkv.bias
    return LayerWeights(
        attention_norm=layer.attention_norm.scale[...],
        qkv=attention.qkv.weight[...],
        qkv_bias=None if bias is None else bias[...],
        out=attention.out.weight[...],
        mlp_norm=layer.mlp_norm.scale[...],
        up=mlp.up.weight[...],
        down=mlp.down.weight[...],
    )
