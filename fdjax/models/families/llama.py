"""Llama 2, 3 and 3.1 (`LlamaForCausalLM`)."""

from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(
    num_kv_heads=None, head_dim=None, max_position=2048, bos=1, eos=(2,)
)


def _configure(fields: HfConfig) -> ModelConfig:
    bias = fields.take("attention_bias", bool, False)
    mlp_bias = fields.take("mlp_bias", bool, False)
    layer = read_layer(
        fields, _DEFAULTS, qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias
    )
    layers = (layer,) * common.num_layers(fields)
    return read_gated(fields, "llama", _DEFAULTS, layers)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, TensorNames())


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
