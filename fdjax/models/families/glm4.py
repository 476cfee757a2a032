"""GLM-4-0414 (`Glm4ForCausalLM`): GLM with normalised attention and MLP outputs."""

from dataclasses import replace

from fdjax.models.config import ModelConfig
from fdjax.models.families.glm import glm_layer, read_glm
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_NAMES = TensorNames(
    up=("mlp.gate_up_proj",),
    attention_post_norm="post_self_attn_layernorm",
    mlp_post_norm="post_mlp_layernorm",
)


def _configure(fields: HfConfig) -> ModelConfig:
    layer = glm_layer(fields)
    norm = layer.attention_norm
    layer = replace(layer, attention_post_norm=norm, mlp_post_norm=norm)
    return read_glm(fields, "glm4", layer)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


GLM4 = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
