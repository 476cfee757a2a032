"""OPT (`OPTForCausalLM`): learned positions, layer norms before each part."""

from fdjax.config import Attention, Embedding, LayerNorm, LayerSpec, Learned, Mlp
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.names import TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

# The first two rows of the table belong to padding, as in fairseq.
_POSITION_OFFSET = 2
_NORM = LayerNorm(epsilon=1e-5)
_NAMES = TensorNames(
    embed="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    layer="model.decoder.layers.{i}.",
    attention_norm="self_attn_layer_norm",
    out="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up=("fc1",),
    down="fc2",
    final_norm="model.decoder.final_layer_norm",
)


def _configure(fields: HfConfig) -> ModelConfig:
    hidden_size = fields.take("hidden_size", int)
    _check_shape(fields, hidden_size)
    bias = fields.take("enable_bias", bool, True)
    max_position = fields.take("max_position_embeddings", int, 2048)
    layer = LayerSpec(
        attention=_attention(fields, hidden_size, bias=bias),
        mlp=Mlp(
            size=fields.take("ffn_dim", int),
            activation=common.activation(fields, "activation_function", "relu"),
            bias=bias,
        ),
        attention_norm=_NORM,
        mlp_norm=_NORM,
    )
    return ModelConfig(
        family="opt",
        hidden_size=hidden_size,
        layers=(layer,) * common.num_layers(fields),
        max_position=max_position,
        embedding=Embedding(
            vocab_size=fields.take("vocab_size", int),
            tied=fields.take("tie_word_embeddings", bool, True),
            positions=Learned(max_position, _POSITION_OFFSET),
        ),
        final_norm=_NORM,
        bos_token_id=fields.take_optional("bos_token_id", int, 2, minimum=0),
        eos_token_ids=common.eos_token_ids(fields, (2,)),
        dtype=common.saved_dtype(fields),
    )


def _check_shape(fields: HfConfig, hidden_size: int) -> None:
    fields.require(
        "do_layer_norm_before", (True,), because="norms come before each part"
    )
    fields.require(
        "_remove_final_layer_norm", (False,), because="a norm follows the last layer"
    )
    fields.require(
        "layer_norm_elementwise_affine", (True,), because="norms have scale and bias"
    )
    fields.require(
        "word_embed_proj_dim",
        (hidden_size, None),
        because="tokens are embedded at the hidden size, without projections",
    )
    # In some published files; no class has ever read it.
    fields.require(
        "output_projection", (True, False, None), because="it is a flag without effect"
    )


def _attention(fields: HfConfig, hidden_size: int, *, bias: bool) -> Attention:
    name = "num_attention_heads"
    heads = fields.take(name, int)
    head_dim = common.quotient(fields, "hidden_size", hidden_size, name, heads)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=None,
        qkv_bias=bias,
        out_bias=bias,
    )


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


OPT = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(r"decoder\.version",),
    prefixes=("model.",),
)
