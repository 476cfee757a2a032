"""Gemma 2 (`Gemma2ForCausalLM`): alternating windows, soft caps, four norms a layer."""

from dataclasses import replace

from fdjax.config import LayerSpec, RmsNorm
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(
    num_kv_heads=4,
    head_dim=256,
    max_position=8192,
    bos=2,
    eos=(1,),
    tied=True,
    activation_field="hidden_activation",
    activation="gelu_pytorch_tanh",
)
_WINDOW = 4096
_QUERY_SCALAR = 256.0
_ATTENTION_CAP = 50.0
_LOGIT_CAP = 30.0
_NAMES = TensorNames(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def _configure(fields: HfConfig) -> ModelConfig:
    fields.require(
        "use_bidirectional_attention",
        (False, None),
        because="every layer attends to earlier tokens only",
    )
    _check_twins(fields)
    layers = common.with_windows(_layer(fields), _windows(fields))
    model = read_gated(fields, "gemma2", _DEFAULTS, layers)
    logit_cap = fields.take_optional("final_logit_softcapping", float, _LOGIT_CAP)
    scale = model.hidden_size**0.5
    return replace(
        model, embedding=replace(model.embedding, scale=scale, soft_cap=logit_cap)
    )


def _layer(fields: HfConfig) -> LayerSpec:
    bias = fields.take("attention_bias", bool, False)
    layer = read_layer(fields, _DEFAULTS, qkv_bias=bias, out_bias=bias)
    scalar = fields.take("query_pre_attn_scalar", float, _QUERY_SCALAR)
    soft_cap = fields.take_optional("attn_logit_softcapping", float, _ATTENTION_CAP)
    norm = RmsNorm(layer.attention_norm.epsilon, scale_offset=1.0)
    return LayerSpec(
        attention=replace(layer.attention, scale=scalar**-0.5, soft_cap=soft_cap),
        mlp=layer.mlp,
        attention_norm=norm,
        mlp_norm=norm,
        attention_post_norm=norm,
        mlp_post_norm=norm,
    )


def _windows(fields: HfConfig) -> tuple[int | None, ...]:
    window = fields.take_optional("sliding_window", int, _WINDOW)
    return common.windows(fields, window, lambda layer: layer % 2 == 0)


def _check_twins(fields: HfConfig) -> None:
    """Published files carry second spellings that the class ignores."""
    activation = fields.take("hidden_activation", str, _DEFAULTS.activation)
    window = fields.take_optional("sliding_window", int, _WINDOW)
    fields.require(
        "hidden_act", (activation, None), because="hidden_activation is in force"
    )
    fields.require(
        "sliding_window_size", (window, None), because="sliding_window is in force"
    )


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
