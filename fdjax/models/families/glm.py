"""GLM-4 in transformers' format (`GlmForCausalLM`): half of each head is rotated."""

from dataclasses import replace

from fdjax.models.config import ModelConfig
from fdjax.models.families.gated import Defaults, read_gated
from fdjax.models.families.names import STORED_FREQUENCIES, Names, decoder_rules
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
_NAMES = Names(up=("mlp.gate_up_proj",))


def read_glm(fields: HfConfig, family: str) -> ModelConfig:
    """Reads what `GlmConfig` and `Glm4Config` have in common, which is all."""
    bias = fields.take("attention_bias", bool, True)
    model = read_gated(fields, family, _DEFAULTS, qkv_bias=bias)
    # Both classes put their own end tokens where the file says null.
    return replace(model, eos_token_ids=model.eos_token_ids or _DEFAULTS.eos)


def _configure(fields: HfConfig) -> ModelConfig:
    return read_glm(fields, "glm")


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
