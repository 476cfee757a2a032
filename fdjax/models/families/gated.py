"""The decoder most families are: RMS norms, RoPE, grouped heads and a gated MLP."""

from dataclasses import dataclass

from fdjax.config import Attention, Embedding, GatedMlp, LayerSpec, RmsNorm
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.rope import read_rope
from fdjax.models.hf_config import HfConfig


@dataclass(frozen=True)
class Defaults:
    """What a configuration class of transformers assumes for absent fields.

    Attributes:
        num_kv_heads: `None` for as many as query heads.
        head_dim: `None` for the hidden size over the query heads.
        max_position: longest sequence, in tokens.
        epsilon: of the normalisations.
        bos: first token.
        eos: tokens that end a sequence.
        tied: the head reuses the token embedding.
        activation_field: the field that names the activation.
        activation: its value.
        rotary_fraction: rotated part of a head; `None` if heads are rotated whole.
        interleaved: dimensions are rotated in pairs of neighbours.
    """

    num_kv_heads: int | None
    head_dim: int | None
    max_position: int
    epsilon: float = 1e-6
    bos: int | None = None
    eos: tuple[int, ...] = ()
    tied: bool = False
    activation_field: str = "hidden_act"
    activation: str = "silu"
    rotary_fraction: float | None = None
    interleaved: bool = False


def read_gated(
    fields: HfConfig, family: str, defaults: Defaults, layers: tuple[LayerSpec, ...]
) -> ModelConfig:
    """Reads the fields that all families of this shape spell alike.

    Args:
        fields: the configuration.
        family: name of the family.
        defaults: meaning of absent fields.
        layers: what the family has made of `read_layer`; the last norm is like theirs.

    Raises:
        ConfigError: a field is missing, malformed or not supported.
    """
    return ModelConfig(
        family=family,
        hidden_size=fields.take("hidden_size", int),
        layers=layers,
        max_position=_max_position(fields, defaults),
        embedding=Embedding(
            vocab_size=fields.take("vocab_size", int),
            tied=fields.take("tie_word_embeddings", bool, defaults.tied),
        ),
        final_norm=layers[-1].attention_norm,
        bos_token_id=fields.take_optional("bos_token_id", int, defaults.bos, minimum=0),
        eos_token_ids=common.eos_token_ids(fields, defaults.eos),
        dtype=common.saved_dtype(fields),
    )


def read_layer(
    fields: HfConfig,
    defaults: Defaults,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
) -> LayerSpec:
    """Reads what all layers have in common; each attends to all tokens.

    Args:
        fields: the configuration.
        defaults: meaning of absent fields.
        qkv_bias: the linear map to q, k and v adds a bias.
        out_bias: the output map adds a bias.
        mlp_bias: the MLP's maps add a bias.

    Raises:
        ConfigError: a field is missing, malformed or not supported.
    """
    norm = RmsNorm(fields.take("rms_norm_eps", float, defaults.epsilon))
    activation = common.activation(
        fields, defaults.activation_field, defaults.activation
    )
    return LayerSpec(
        attention=_attention(fields, defaults, qkv_bias=qkv_bias, out_bias=out_bias),
        mlp=GatedMlp(fields.take("intermediate_size", int), activation, mlp_bias),
        attention_norm=norm,
        mlp_norm=norm,
    )


def _max_position(fields: HfConfig, defaults: Defaults) -> int:
    return fields.take("max_position_embeddings", int, defaults.max_position)


def _attention(
    fields: HfConfig, defaults: Defaults, *, qkv_bias: bool, out_bias: bool
) -> Attention:
    hidden_size = fields.take("hidden_size", int)
    heads = fields.take("num_attention_heads", int)
    kv_heads = fields.take_optional("num_key_value_heads", int, defaults.num_kv_heads)
    kv_heads = kv_heads or heads
    common.quotient(
        fields, "num_attention_heads", heads, "num_key_value_heads", kv_heads
    )
    head_dim = fields.take_optional("head_dim", int, defaults.head_dim)
    if head_dim is None:
        head_dim = common.quotient(
            fields, "hidden_size", hidden_size, "num_attention_heads", heads
        )
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=read_rope(
            fields,
            head_dim=head_dim,
            max_position=_max_position(fields, defaults),
            rotary_fraction=defaults.rotary_fraction,
            interleaved=defaults.interleaved,
        ),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )
