"""GPT-J (`GPTJForCausalLM`): attention and MLP read the same normalised input."""

from fdjax.config import Attention, Embedding, LayerNorm, LayerSpec, Mlp, Rope
from fdjax.models.config import ModelConfig
from fdjax.models.families import fields as common
from fdjax.models.families.names import TensorNames, decoder_rules
from fdjax.models.family import Family, Rule
from fdjax.models.hf_config import HfConfig

_THETA = 10_000.0
_END_OF_TEXT = 50_256
_NAMES = TensorNames(
    embed="transformer.wte",
    layer="transformer.h.{i}.",
    attention_norm="ln_1",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    out="attn.out_proj",
    up=("mlp.fc_in",),
    down="mlp.fc_out",
    final_norm="transformer.ln_f",
)


def _configure(fields: HfConfig) -> ModelConfig:
    fields.require("rotary", (True,), because="positions are rotary")
    fields.require(
        "scale_attn_weights", (True,), because="scores are scaled by the head size"
    )
    hidden_size = fields.take("n_embd", int, aliases=("hidden_size",))
    norm = LayerNorm(fields.take("layer_norm_epsilon", float, 1e-5))
    layer = LayerSpec(
        attention=_attention(fields, hidden_size),
        mlp=_mlp(fields, hidden_size),
        attention_norm=norm,
        mlp_norm=None,
    )
    return ModelConfig(
        family="gptj",
        hidden_size=hidden_size,
        layers=(layer,) * common.num_layers(fields, "n_layer", "num_hidden_layers"),
        max_position=fields.take(
            "n_positions", int, 2048, aliases=("max_position_embeddings",)
        ),
        embedding=Embedding(
            vocab_size=fields.take("vocab_size", int),
            tied=fields.take("tie_word_embeddings", bool, False),
            head_bias=True,
        ),
        final_norm=norm,
        bos_token_id=fields.take_optional("bos_token_id", int, _END_OF_TEXT, minimum=0),
        eos_token_ids=common.eos_token_ids(fields, (_END_OF_TEXT,)),
        dtype=common.saved_dtype(fields),
    )


def _attention(fields: HfConfig, hidden_size: int) -> Attention:
    heads = fields.take("n_head", int, aliases=("num_attention_heads",))
    head_dim = common.quotient(fields, "n_embd", hidden_size, "n_head", heads)
    rope = Rope(_THETA, fields.take("rotary_dim", int, 64), interleaved=True)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=common.check_rotary(fields, "rotary_dim", rope, head_dim),
    )


def _mlp(fields: HfConfig, hidden_size: int) -> Mlp:
    size = fields.take_optional("n_inner", int) or 4 * hidden_size
    activation = common.activation(fields, "activation_function", "gelu_new")
    return Mlp(size, activation, bias=True)


def _rules(model: ModelConfig) -> tuple[Rule, ...]:
    return decoder_rules(model, _NAMES)


GPTJ = Family(
    name="gptj",
    architectures=("GPTJForCausalLM",),
    configure=_configure,
    rules=_rules,
    # Old checkpoints store each layer's causal mask.
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
    prefixes=("transformer.",),
)
