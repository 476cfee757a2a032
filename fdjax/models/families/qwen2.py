"""Qwen 1.5, 2 and 2.5 (`Qwen2ForCausalLM`): Llama with biased q, k and v."""

from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.gated import Defaults, read_gated, read_layer
from fdjax.models.families.names import STORED_FREQUENCIES, TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_DEFAULTS = Defaults(num_kv_heads=32, head_dim=None, max_position=32_768)
_WINDOW = 4096
_FULL_LAYERS = 28


def qwen_windows(fields: HfConfig) -> tuple[int | None, ...]:
    """Windows as Qwen spells them: off, or from layer `max_window_layers` on."""
    window = fields.take_optional("sliding_window", int, _WINDOW)
    full = fields.take("max_window_layers", int, _FULL_LAYERS, minimum=0)
    if not fields.take("use_sliding_window", bool, False):
        window = None
    return common.windows(fields, window, lambda i: window is not None and i >= full)


def _configure(fields: HfConfig) -> ModelConfig:
    layer = read_layer(fields, _DEFAULTS, qkv_bias=True)
    layers = common.with_windows(layer, qwen_windows(fields))
    return read_gated(fields, "qwen2", _DEFAULTS, layers)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, TensorNames())


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    configure=_configure,
    rules=_rules,
    ignored=(STORED_FREQUENCIES,),
    prefixes=("model.",),
)
