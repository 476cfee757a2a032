"""Models of Tunix that fdjax serves: their mathematics, read from the actor itself."""

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from fdjax.errors import Unsupported
from fdjax.models.config import ModelConfig

# A subclass may compute something else: classes are known by their full names.
_ARCHITECTURES = {
    "tunix.models.llama3.model.Llama3": "LlamaForCausalLM",
    "tunix.models.qwen2.model.Qwen2": "Qwen2ForCausalLM",
    "tunix.models.qwen3.model.Qwen3": "Qwen3ForCausalLM",
}
# Tunix's word for a field, and that of config.json.
_FIELDS = {
    "num_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "weight_tying": "tie_word_embeddings",
    "use_tied_embedding": "tie_word_embeddings",
}
# Read elsewhere, or of no effect on what is computed.
_OTHER_FIELDS = (
    "rope_theta",
    "dtype",
    "param_dtype",
    "shd_config",
    "remat_config",
    "use_flash_attention",
    "flash_attention_block_size",
)
_TINY = {
    "num_layers": 1,
    "vocab_size": 4,
    "embed_dim": 8,
    "hidden_dim": 8,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 4,
    "dtype": jnp.float32,
    "param_dtype": jnp.float32,
    "use_flash_attention": False,
}


def read_actor(actor: Any, *, max_model_len: int) -> ModelConfig:
    """The configuration of a model of Tunix.

    Args:
        actor: the model.
        max_model_len: longest sequence that will be asked for, in tokens.

    Raises:
        Unsupported: it is of a class, or has an option, that fdjax has not.
    """
    name = f"{type(actor).__module__}.{type(actor).__qualname__}"
    if name not in _ARCHITECTURES:
        served = ", ".join(each.rpartition(".")[2] for each in _ARCHITECTURES)
        raise Unsupported(f"the actor is a {name}; fdjax serves Tunix's {served}")
    config = actor.config
    options = [*_unknown(config)]
    if options:
        raise Unsupported(
            f"the actor's config has {', '.join(options)}, which fdjax does not serve"
        )
    fields = {
        theirs: getattr(config, ours)
        for ours, theirs in _FIELDS.items()
        if hasattr(config, ours)
    }
    return ModelConfig.from_hf(
        {
            **fields,
            "architectures": [_ARCHITECTURES[name]],
            "rope_theta": _theta(type(actor), config),
            "max_position_embeddings": max_model_len,
            "eos_token_id": None,  # a request names those that end it
            "bos_token_id": None,
        }
    )


def dtype_of(actor: Any) -> np.dtype:
    """The type that it computes in: its config's, where it has one, or its weights'."""
    config = actor.config
    if hasattr(config, "dtype"):
        return jnp.dtype(config.dtype)
    return jnp.dtype(actor.embedder.input_embedding.dtype)


def _unknown(config: Any) -> Iterator[str]:
    """Fields that may change the mathematics, with their values."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        known = field.name in _FIELDS or field.name in _OTHER_FIELDS
        if not known and value is not None and value is not False:
            yield f"{field.name}={value!r}"


def _theta(model: type[Any], config: Any) -> float:
    """The base of the rotary positions.

    Tunix 0.1.7's Llama 3 and Qwen 3 rotate by their function's default, whatever the
    config says. So a tiny model is asked whether it makes a difference.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    tiny = {name: value for name, value in _TINY.items() if name in fields}

    def logits(theta: int) -> np.ndarray:
        asked = model(
            dataclasses.replace(config, **tiny, rope_theta=theta), rngs=nnx.Rngs(0)
        )
        tokens, positions = jnp.asarray([[0, 1, 2]]), jnp.asarray([[0, 40, 90]])
        return np.asarray(asked(tokens, positions, None, None)[0])

    if not np.array_equal(logits(100), logits(10_000)):
        return float(config.rope_theta)
    rotate = inspect.signature(sys.modules[model.__module__].apply_rope)
    return float(rotate.parameters["rope_theta"].default)
