"""Sizes of a decoder's parameters, written down apart from the decoder."""

import math

from fdjax.config import Learned, Norm
from fdjax.models.config import ModelConfig

type Sizes = dict[str, tuple[int, ...]]


def num_parameters(model: ModelConfig) -> int:
    """Numbers that a model's checkpoint holds."""
    return sum(math.prod(shape) for shape in parameter_sizes(model).values())


def parameter_sizes(model: ModelConfig) -> Sizes:
    """The shape of every parameter, by its path."""
    size, embedding = model.hidden_size, model.embedding
    sizes: Sizes = {"embed.weight": (embedding.vocab_size, size)}
    if isinstance(model.positions, Learned):
        rows = model.positions.size + model.positions.offset
        sizes["positions.weight"] = (rows, size)
    if embedding.norm is not None:
        sizes |= _norm("embed_norm", embedding.norm, size)
    for layer in range(model.num_layers):
        sizes |= _attention(f"layers.{layer}.attention", model)
        sizes |= _mlp(f"layers.{layer}.mlp", model)
    sizes |= _norm("final_norm", model.norm, size)
    if not embedding.tied:
        sizes["head.weight"] = (embedding.vocab_size, size)
    if embedding.head_bias:
        sizes["head.bias"] = (embedding.vocab_size,)
    return sizes


def _attention(path: str, model: ModelConfig) -> Sizes:
    spec, size = model.attention, model.hidden_size
    rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    sizes = _norm(f"{path}_norm", model.norm, size)
    sizes |= _linear(f"{path}.qkv", rows, size, bias=spec.qkv_bias)
    mixed = spec.num_heads * spec.head_dim
    sizes |= _linear(f"{path}.out", size, mixed, bias=spec.out_bias)
    if spec.qk_norm is not None:
        sizes |= _norm(f"{path}.q_norm", spec.qk_norm, spec.head_dim)
        sizes |= _norm(f"{path}.k_norm", spec.qk_norm, spec.head_dim)
    if model.post_norms:
        sizes |= _norm(f"{path}_post_norm", model.norm, size)
    return sizes


def _mlp(path: str, model: ModelConfig) -> Sizes:
    spec, size = model.mlp, model.hidden_size
    rows = 2 * spec.size if spec.gated else spec.size
    sizes = _linear(f"{path}.up", rows, size, bias=spec.bias)
    sizes |= _linear(f"{path}.down", size, spec.size, bias=spec.bias)
    if model.residual == "sequential":
        sizes |= _norm(f"{path}_norm", model.norm, size)
    if model.post_norms:
        sizes |= _norm(f"{path}_post_norm", model.norm, size)
    return sizes


def _norm(path: str, norm: Norm, size: int) -> Sizes:
    parts = ("scale", "bias") if norm.kind == "layer" else ("scale",)
    return {f"{path}.{part}": (size,) for part in parts}


def _linear(path: str, rows: int, columns: int, *, bias: bool) -> Sizes:
    sizes: Sizes = {f"{path}.weight": (rows, columns)}
    return sizes | {f"{path}.bias": (rows,)} if bias else sizes
