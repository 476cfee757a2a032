"""GLM-4 in transformers' format (`GlmForCausalLM`): half of each head is rotated."""

from dataclasses import replace

from fdjax.config import LayerSpec
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(
    num_kv_heads=2,
    head_dim=128,
    max_position=131_072,
    epsilon=1.5625e-07,
    eos=(151_329, 151_336, 151_338),
    rotary_fraction=0.5,
    interleaved=True,
)
_NAMES = TensorNames(up=("mlp.gate_up_proj",))


def read_glm(fields: HfConfig, family: str, layer: LayerSpec) -> ModelConfig:
    """Reads what `GlmConfig` and `Glm4Config` have in common, but for the layer."""
    layers = (layer,) * common.num_layers(fields)
    model = read_gated(fields, family, _DEFAULTS, layers)
    # Both classes put their own end tokens where the file says null.
    return replace(model, eos_token_ids=model.eos_token_ids or _DEFAULTS.eos)


def glm_layer(fields: HfConfig) -> LayerSpec:
    """A layer of GLM; GLM-4-0414 normalises what it adds."""
    bias = fields.take("attention_bias", bool, True)
    return read_layer(fields, _DEFAULTS, qkv_bias=bias)


def _configure(fields: HfConfig) -> ModelConfig:
    return read_glm(fields, "glm", glm_layer(fields))


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


GLM = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
