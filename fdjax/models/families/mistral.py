"""Mistral (`MistralForCausalLM`): Llama with one sliding window in every layer."""

from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(
    num_kv_heads=8, head_dim=None, max_position=131_072, bos=1, eos=(2,)
)
_WINDOW = 4096


def _configure(fields: HfConfig) -> ModelConfig:
    window = fields.take_optional("sliding_window", int, _WINDOW)
    windows = (window,) * common.num_layers(fields)
    layers = common.with_windows(read_layer(fields, _DEFAULTS), windows)
    return read_gated(fields, "mistral", _DEFAULTS, layers)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, TensorNames())


MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
