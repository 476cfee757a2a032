"""Qwen 3 (`Qwen3ForCausalLM`): Llama with normalised query and key heads."""

from dataclasses import replace

from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.families.qwen2 import qwen_windows
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(num_kv_heads=32, head_dim=128, max_position=32_768)
_NAMES = TensorNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


def _configure(fields: HfConfig) -> ModelConfig:
    bias = fields.take("attention_bias", bool, False)
    layer = read_layer(fields, _DEFAULTS, qkv_bias=bias, out_bias=bias)
    attention = replace(layer.attention, qk_norm=layer.attention_norm)
    layer = replace(layer, attention=attention)
    layers = common.with_windows(layer, qwen_windows(fields))
    return read_gated(fields, "qwen3", _DEFAULTS, layers)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
