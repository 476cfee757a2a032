"""Sizes of a decoder's parameters, written down apart from the decoder."""

import math

from fdjax.config import GatedMlp, LayerNorm, LayerSpec, Norm
from fdjax.models.config import ModelConfig

type Sizes = dict[str, tuple[int, ...]]


def num_parameters(model: ModelConfig) -> int:
    """Numbers that a model's checkpoint holds."""
    return sum(math.prod(shape) for shape in parameter_sizes(model).values())


def parameter_sizes(model: ModelConfig) -> Sizes:
    """The shape of every parameter, by its path."""
    size, embedding = model.hidden_size, model.embedding
    sizes: Sizes = {"embed.weight": (embedding.vocab_size, size)}
    if embedding.positions is not None:
        rows = embedding.positions.size + embedding.positions.offset
        sizes["positions.weight"] = (rows, size)
    if embedding.norm is not None:
        sizes |= _norm("embed_norm", embedding.norm, size)
    for index, layer in enumerate(model.layers):
        sizes |= _attention(f"layers.{index}.attention", layer, size)
        sizes |= _mlp(f"layers.{index}.mlp", layer, size)
    sizes |= _norm("final_norm", model.final_norm, size)
    if not embedding.tied:
        sizes["head.weight"] = (embedding.vocab_size, size)
    if embedding.head_bias:
        sizes["head.bias"] = (embedding.vocab_size,)
    return sizes


def _attention(path: str, layer: LayerSpec, size: int) -> Sizes:
    spec = layer.attention
    rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    sizes = _norm(f"{path}_norm", layer.attention_norm, size)
    sizes |= _linear(f"{path}.qkv", rows, size, bias=spec.qkv_bias)
    mixed = spec.num_heads * spec.head_dim
    sizes |= _linear(f"{path}.out", size, mixed, bias=spec.out_bias)
    if spec.qk_norm is not None:
        sizes |= _norm(f"{path}.q_norm", spec.qk_norm, spec.head_dim)
        sizes |= _norm(f"{path}.k_norm", spec.qk_norm, spec.head_dim)
    if layer.attention_post_norm is not None:
        sizes |= _norm(f"{path}_post_norm", layer.attention_post_norm, size)
    return sizes


def _mlp(path: str, layer: LayerSpec, size: int) -> Sizes:
    spec = layer.mlp
    rows = 2 * spec.size if isinstance(spec, GatedMlp) else spec.size
    sizes = _linear(f"{path}.up", rows, size, bias=spec.bias)
    sizes |= _linear(f"{path}.down", size, spec.size, bias=spec.bias)
    if layer.mlp_norm is not None:
        sizes |= _norm(f"{path}_norm", layer.mlp_norm, size)
    if layer.mlp_post_norm is not None:
        sizes |= _norm(f"{path}_post_norm", layer.mlp_post_norm, size)
    return sizes


def _norm(path: str, norm: Norm, size: int) -> Sizes:
    parts = ("scale", "bias") if isinstance(norm, LayerNorm) else ("scale",)
    return {f"{path}.{part}": (size,) for part in parts}


def _linear(path: str, rows: int, columns: int, *, bias: bool) -> Sizes:
    sizes: Sizes = {f"{path}.weight": (rows, columns)}
    return sizes | {f"{path}.bias": (rows,)} if bias else sizes
