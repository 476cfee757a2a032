"""All layers of a decode step as one call, for models of the kind that allows it."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp

from fdjax.config import (
    Attention,
    GatedMlp,
    LayerSpec,
    LinearScaling,
    Llama3Scaling,
    RmsNorm,
    Rope,
)
from fdjax.config.accepted import Accepted, refused_field
from fdjax.kernels.decoder_stack import (
    OP,
    DecoderStack,
    LayerWeights,
    StackSpec,
    decoder_stack,
)
from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch
from fdjax.layers.positions import rope_frequencies
from fdjax.models.config import ModelConfig
from fdjax.models.decoder_layer import DecoderLayer
from fdjax.notation import Array, Float, Int32

# What `decoder_stack` is told of a layer: by `StackSpec`, by RoPE's frequencies, or by
# which weights there are and of which shapes.
_ACCEPTED: Accepted = {
    LayerSpec: {
        "attention": Attention,
        "mlp": GatedMlp,
        "attention_norm": RmsNorm,
        "mlp_norm": RmsNorm,
    },
    Attention: {
        "num_heads": int,
        "num_kv_heads": int,
        "head_dim": int,
        "scale": float,
        "positions": Rope,
        "window": int | None,
        "qkv_bias": bool,
        "soft_cap": float | None,
    },
    GatedMlp: {"size": int, "activation": str},
    RmsNorm: {"epsilon": float, "scale_offset": float},
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
}


def unlike_the_stack(layers: Sequence[LayerSpec]) -> str | None:
    """Why layers are not of the kind that `decoder_stack` computes, or `None`."""
    first = layers[0]
    for index, layer in enumerate(layers):
        field = refused_field(layer, _ACCEPTED)
        if field is not None:
            return f"it does not take layers with {field}"
        if layer.mlp_norm != layer.attention_norm:
            return "the norms of a layer differ"
        window = layer.attention.window
        if layer != replace(first, attention=replace(first.attention, window=window)):
            return f"layer {index} differs from the first in more than its window"
    return None


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
    if batch.phase != "decode":
        return None
    shares = batch.pages.prefixes is not None
    reason = "rows share prefixes" if shares else unlike_the_stack(config.layers)
    if reason is not None:
        OP.pass_over(reason)
        return None
    rope = config.layers[0].attention.positions
    assert isinstance(rope, Rope)
    operands = (
        x,
        kv,
        batch.pages,
        jnp.asarray(rope_frequencies(rope)),
        tuple(_weights(layer) for layer in layers),
    )
    spec = _spec(config, rope)
    if not OP.fast(DecoderStack(*operands, spec=spec)):
        return None
    return decoder_stack(*operands, spec=spec)


def _spec(config: ModelConfig, rope: Rope) -> StackSpec:
    first = config.layers[0]
    attention, norm = first.attention, first.attention_norm
    assert isinstance(norm, RmsNorm)
    return StackSpec(
        windows=tuple(layer.attention.window for layer in config.layers),
        scale=attention.scale,
        soft_cap=attention.soft_cap,
        interleaved=rope.interleaved,
        epsilon=norm.epsilon,
        scale_offset=norm.scale_offset,
        activation=first.mlp.activation,
        unified=config.unified,
    )


def _weights(layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    assert layer.mlp_norm is not None
    bias = attention.qkv.bias
    return LayerWeights(
        attention_norm=layer.attention_norm.scale[...],
        qkv=attention.qkv.weight.get_value(),
        qkv_bias=None if bias is None else bias[...],
        out=attention.out.weight.get_value(),
        mlp_norm=layer.mlp_norm.scale[...],
        up=mlp.up.weight.get_value(),
        down=mlp.down.weight.get_value(),
    )
