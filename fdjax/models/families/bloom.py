"""BLOOM (`BloomForCausalLM`): ALiBi, and q, k and v fused head by head."""

import numpy as np

from fdjax.config import Alibi, Attention, Embedding, LayerNorm, LayerSpec, Mlp
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.names import TensorNames, decoder_rules
from fdjax.models.family import Family, Rule, Transform
from fdjax.models.hf_config import HfConfig

_NAMES = TensorNames(
    embed="transformer.word_embeddings",
    embed_norm="transformer.word_embeddings_layernorm",
    layer="transformer.h.{i}.",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="transformer.ln_f",
)

# Switches of the training code in published files; the class reads none of them.
_TRAINING_FLAGS = (
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "skip_bias_add",
    "skip_bias_add_qkv",
)


def split_heads(num_heads: int) -> Transform:
    """Reorders fused rows from (head, q/k/v, dim) to (q/k/v, head, dim).

    Args:
        num_heads: `Hq`.

    Returns:
        A function of a weight `[3 Hq D, E]` or a bias `[3 Hq D]`.
    """

    def reorder(fused: np.ndarray) -> np.ndarray:
        rest = fused.shape[1:]
        heads = fused.reshape(num_heads, 3, -1, *rest)
        return heads.swapaxes(0, 1).reshape(fused.shape)

    return reorder


def _configure(fields: HfConfig) -> ModelConfig:
    fields.require(
        "apply_residual_connection_post_layernorm",
        (False,),
        because="residuals are taken before the norms",
    )
    for name in _TRAINING_FLAGS:
        fields.take(name, bool, True)
    fields.take("offset_alibi", int, 100)
    hidden_size = fields.take("hidden_size", int, aliases=("n_embed",))
    fields.require(
        "n_inner", (4 * hidden_size, None), because="the MLP is 4 hidden sizes wide"
    )
    norm = LayerNorm(fields.take("layer_norm_epsilon", float, 1e-5))
    layer = LayerSpec(
        attention=_attention(fields, hidden_size),
        mlp=Mlp(4 * hidden_size, "gelu_tanh", bias=True),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelConfig(
        family="bloom",
        hidden_size=hidden_size,
        layers=(layer,) * common.num_layers(fields, "n_layer", "num_hidden_layers"),
        # ALiBi sets no limit; this is the length BLOOM was trained at.
        max_position=fields.take("seq_length", int, 2048),
        embedding=Embedding(
            vocab_size=fields.take("vocab_size", int),
            tied=fields.take("tie_word_embeddings", bool, True),
            norm=norm,
        ),
        final_norm=norm,
        bos_token_id=fields.take_optional("bos_token_id", int, 1, minimum=0),
        eos_token_ids=common.eos_token_ids(fields, (2,)),
        dtype=common.saved_dtype(fields),
    )


def _attention(fields: HfConfig, hidden_size: int) -> Attention:
    heads = fields.take("n_head", int, aliases=("num_attention_heads",))
    head_dim = common.quotient(fields, "hidden_size", hidden_size, "n_head", heads)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=Alibi(),
        qkv_bias=True,
        out_bias=True,
    )


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    transform = split_heads(model.num_heads)
    return decoder_rules(model, _NAMES, qkv_transform=transform)


BLOOM = Family(
    name="bloom",
    # The head is tied, so a published BloomModel is a whole language model.
    architectures=("BloomForCausalLM", "BloomModel"),
    configure=_configure,
    rules=_rules,
    prefixes=("transformer.",),
)
