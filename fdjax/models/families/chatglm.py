"""ChatGLM2, ChatGLM3 and GLM-4 as their authors published them (`ChatGLMModel`)."""

import re

from fdjax.config import (
    Attention,
    Embedding,
    GatedMlp,
    LayerSpec,
    LinearScaling,
    RmsNorm,
    Rope,
)
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_THETA = 10_000.0

# The generations share their fields but not the meaning of "rope_ratio". Their name
# tells them apart, and GLM-4's vocabulary: the others have 65,024 tokens.
_CHATGLM2 = re.compile(r"(chatglm|codegeex)2(?!\d)", re.IGNORECASE)
_LATER = re.compile(r"chatglm3(?!\d)|(glm|codegeex)-?4(?!\d)", re.IGNORECASE)
_GLM4_VOCABULARY = 151_552

_NAMES = TensorNames(
    embed="transformer.embedding.word_embeddings",
    layer="transformer.encoder.layers.{i}.",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
)

# What the published modelling code could be switched to, and what it would change.
_FIXED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("position_encoding_2d", (False, None), "the first ChatGLM-6B is another model"),
    ("quantization_bit", (0, None), "fdjax does not read quantised weights"),
    ("rmsnorm", (True,), "the norms are RMS norms"),
    ("post_layer_norm", (True,), "the last layer is followed by a norm"),
    (
        "apply_residual_connection_post_layernorm",
        (False,),
        "residuals are taken before the norms",
    ),
    ("fp32_residual_connection", (False,), "residuals have the model's dtype"),
    ("tie_word_embeddings", (False,), "the output layer has its own weight"),
)

# Fusions, and a factor that the published code divides out again: no effect.
_WITHOUT_EFFECT = (
    "apply_query_key_layer_scaling",
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "original_rope",
)


def _configure(fields: HfConfig) -> ModelConfig:
    for name, allowed, because in _FIXED:
        fields.require(name, allowed, because=because)
    for name in _WITHOUT_EFFECT:
        fields.take(name, bool, True)
    bias = fields.take("add_bias_linear", bool, False)
    norm = RmsNorm(fields.take("layernorm_epsilon", float, 1e-5))
    layer = LayerSpec(
        attention=_attention(fields, linear_bias=bias),
        mlp=GatedMlp(fields.take("ffn_hidden_size", int), "silu", bias=bias),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelConfig(
        family="chatglm",
        hidden_size=fields.take("hidden_size", int),
        layers=(layer,) * common.num_layers(fields, "num_layers", "num_hidden_layers"),
        max_position=fields.take("seq_length", int, 2048),
        embedding=Embedding(
            vocab_size=fields.take("padded_vocab_size", int, aliases=("vocab_size",)),
            tied=False,
        ),
        final_norm=norm,
        bos_token_id=fields.take_optional("bos_token_id", int, minimum=0),
        eos_token_ids=common.eos_token_ids(fields, ()),
        dtype=common.saved_dtype(fields),
    )


def _attention(fields: HfConfig, *, linear_bias: bool) -> Attention:
    heads = fields.take("num_attention_heads", int)
    # Without it, q, k and v would be fused head by head.
    if not fields.take("multi_query_attention", bool, False):
        raise fields.error(
            "multi_query_attention", "only true is supported (ChatGLM2 and later)"
        )
    kv_heads = fields.take("multi_query_group_num", int, 1)
    common.quotient(
        fields, "num_attention_heads", heads, "multi_query_group_num", kv_heads
    )
    head_dim = fields.take("kv_channels", int, 128)
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=_rope(fields, head_dim),
        qkv_bias=fields.take("add_qkv_bias", bool, False) or linear_bias,
        out_bias=linear_bias,
    )


def _rope(fields: HfConfig, head_dim: int) -> Rope:
    """Pairs of neighbours in the first half of each head, for long texts changed."""
    ratio = fields.take("rope_ratio", float, 1.0)
    if ratio == 1.0:
        rope = Rope(_THETA, head_dim // 2, interleaved=True)
    elif _divides_positions(fields):
        rope = Rope(_THETA, head_dim // 2, True, LinearScaling(ratio))
    else:
        rope = Rope(_THETA * ratio, head_dim // 2, interleaved=True)
    return common.check_rotary(fields, "kv_channels", rope, head_dim)


def _divides_positions(fields: HfConfig) -> bool:
    """Whether "rope_ratio" divides positions, as in ChatGLM2-6B-32K.

    Raises:
        ConfigError: the file does not say which generation the model is of.
    """
    name = fields.take_optional("_name_or_path", str) or ""
    vocab_size = fields.take("padded_vocab_size", int, aliases=("vocab_size",))
    divides = _CHATGLM2.search(name) is not None
    if divides == (_LATER.search(name) is not None or vocab_size == _GLM4_VOCABULARY):
        raise fields.error(
            "rope_ratio",
            "ChatGLM2 divides positions by it, ChatGLM3 and GLM-4 multiply the base of "
            f'RoPE, and _name_or_path = "{name}" does not say which model this is; say '
            'it: hf_overrides={"_name_or_path": "chatglm2"}, or "chatglm3" or "glm-4"',
        )
    return divides


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


CHATGLM = Family(
    name="chatglm",
    architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("transformer.",),
)
