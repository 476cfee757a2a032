"""Where a family keeps each tensor; one function makes the weight rules of all."""

from collections.abc import Iterator
from dataclasses import dataclass

from fdjax.config import (
    Attention,
    FeedForwardPart,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Norm,
)
from fdjax.models.config import ModelConfig
from fdjax.models.family import FusedRows, Rule, Transform

# Frequencies that older releases of transformers stored.
STORED_FREQUENCIES = r"(.+\.)?rotary_(pos_)?emb\.inv_freq"


@dataclass(frozen=True)
class TensorNames:
    """Checkpoint names of the decoder's parts, without ".weight" and ".bias".

    The defaults are Llama's, which most families share. Names in a layer are relative
    to `layer`, and `{i}` stands for its index.

    Attributes:
        embed: token embedding.
        positions: learned position table.
        embed_norm: normalisation after the embedding.
        layer: prefix of a layer.
        attention_norm: normalisation before attention.
        qkv: the linear maps to q, k and v, or a fused one.
        out: the output map of attention.
        q_norm: normalisation of each query head.
        k_norm: normalisation of each key head.
        attention_post_norm: normalisation of attention's output.
        mlp_norm: normalisation before the MLP.
        up: the gate and up maps, a fused one, or up alone.
        down: the down map.
        mlp_post_norm: normalisation of the MLP's output.
        final_norm: normalisation after the last layer.
        head: output head.
    """

    embed: str = "model.embed_tokens"
    positions: str = ""
    embed_norm: str = ""
    layer: str = "model.layers.{i}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    q_norm: str = ""
    k_norm: str = ""
    attention_post_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_post_norm: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"


def decoder_rules(
    model: ModelConfig, names: TensorNames, *, qkv_transform: Transform | None = None
) -> tuple[Rule, ...]:
    """The weight rules of `model`: one for each parameter its decoder has.

    Args:
        model: the configured model; says which biases and normalisations exist.
        names: where the family keeps them.
        qkv_transform: a reordering of the rows of each QKV source.
    """
    rules = [*_ends(model, names)]
    for index, layer in enumerate(model.layers):
        source, target = names.layer.format(i=index), f"layers.{index}."
        rules += _attention(layer, names, source, target, qkv_transform)
        rules += _mlp(layer, names, source, target)
    return tuple(rules)


def _ends(model: ModelConfig, names: TensorNames) -> Iterator[Rule]:
    embedding = model.embedding
    yield Rule("embed.weight", (f"{names.embed}.weight",))
    if embedding.positions is not None:
        yield Rule("positions.weight", (f"{names.positions}.weight",))
    yield from _norm(embedding.norm, "embed_norm", names.embed_norm)
    yield from _norm(model.final_norm, "final_norm", names.final_norm)
    if not embedding.tied:
        yield Rule("head.weight", (f"{names.head}.weight",))
    if embedding.head_bias:
        yield Rule("head.bias", (f"{names.head}.bias",))


def _attention(
    layer: LayerSpec,
    names: TensorNames,
    source: str,
    target: str,
    transform: Transform | None,
) -> Iterator[Rule]:
    spec, part = layer.attention, f"{target}attention"
    qkv = tuple(source + name for name in names.qkv)
    post = source + names.attention_post_norm
    yield from _norm(
        layer.attention_norm, f"{part}_norm", source + names.attention_norm
    )
    yield from _linear(
        f"{part}.qkv",
        qkv,
        bias=spec.qkv_bias,
        transform=transform,
        parts=_qkv_parts(spec),
    )
    yield from _linear(f"{part}.out", (source + names.out,), bias=spec.out_bias)
    yield from _norm(spec.qk_norm, f"{part}.q_norm", source + names.q_norm)
    yield from _norm(spec.qk_norm, f"{part}.k_norm", source + names.k_norm)
    yield from _norm(layer.attention_post_norm, f"{part}_post_norm", post)


def _mlp(
    layer: LayerSpec, names: TensorNames, source: str, target: str
) -> Iterator[Rule]:
    spec, part = layer.mlp, f"{target}mlp"
    up = tuple(source + name for name in names.up)
    yield from _norm(layer.mlp_norm, f"{part}_norm", source + names.mlp_norm)
    yield from _linear(f"{part}.up", up, bias=spec.bias, parts=_up_parts(spec))
    yield from _linear(f"{part}.down", (source + names.down,), bias=spec.bias)
    post = source + names.mlp_post_norm
    yield from _norm(layer.mlp_post_norm, f"{part}_post_norm", post)


def _norm(norm: Norm | None, target: str, source: str) -> Iterator[Rule]:
    if norm is None:
        return
    yield Rule(f"{target}.scale", (f"{source}.weight",))
    if isinstance(norm, LayerNorm):
        yield Rule(f"{target}.bias", (f"{source}.bias",))


def _linear(
    target: str,
    sources: tuple[str, ...],
    *,
    bias: bool,
    transform: Transform | None = None,
    parts: tuple[FusedRows, ...] = (),
) -> Iterator[Rule]:
    for array in ("weight", "bias") if bias else ("weight",):
        named = tuple(f"{source}.{array}" for source in sources)
        yield Rule(f"{target}.{array}", named, transform, parts)


def _qkv_parts(spec: Attention) -> tuple[FusedRows, ...]:
    key_rows = spec.num_kv_heads * spec.head_dim
    return (
        FusedRows("q", spec.num_heads * spec.head_dim),
        FusedRows("k", key_rows),
        FusedRows("v", key_rows),
    )


def _up_parts(spec: FeedForwardPart) -> tuple[FusedRows, ...]:
    if not isinstance(spec, GatedMlp):
        return ()
    return FusedRows("gate", spec.size), FusedRows("up", spec.size)
