"""Weights of Tunix's models in fdjax's layout, from device to device."""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding

from fdjax.errors import ConfigError, Unsupported
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.families import FAMILIES
from fdjax.models.weights import check_not_deleted, fill, parameter_shapes
from fdjax.notation import Array

# Where Tunix keeps what a checkpoint names.
_ENDS = {
    "model.embed_tokens.weight": "embedder.input_embedding",
    "model.norm.weight": "final_norm.w",
    "lm_head.weight": "lm_head.w",
}
_IN_LAYER = {
    "input_layernorm.weight": "input_layernorm.w",
    "self_attn.q_proj.weight": "attn.q_proj.w",
    "self_attn.k_proj.weight": "attn.k_proj.w",
    "self_attn.v_proj.weight": "attn.v_proj.w",
    "self_attn.q_proj.bias": "attn.q_bias",
    "self_attn.k_proj.bias": "attn.k_bias",
    "self_attn.v_proj.bias": "attn.v_bias",
    "self_attn.q_norm.weight": "attn.q_norm.w",
    "self_attn.k_norm.weight": "attn.k_norm.w",
    "self_attn.o_proj.weight": "attn.o_proj.w",
    "post_attention_layernorm.weight": "post_attention_layernorm.w",
    "mlp.gate_proj.weight": "mlp.gate_proj.kernel",
    "mlp.up_proj.weight": "mlp.up_proj.kernel",
    "mlp.down_proj.weight": "mlp.down_proj.kernel",
}
_LAYER = re.compile(r"model\.(layers\.\d+\.)(.+)")


class WeightMap:
    """Makes decoders of Tunix's parameters, each in the memory of the one before.

    Args:
        config: the model.
        dtype: of the decoder's weights; others are cast.
        place: where they are to be.
    """

    def __init__(
        self, config: ModelConfig, dtype: np.dtype, place: SingleDeviceSharding
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._place = place
        self._rules = FAMILIES[config.family].rules(config)
        self._shapes = parameter_shapes(config, dtype=dtype)
        self._names = {
            source: _path(source) for rule in self._rules for source in rule.sources
        }
        self._arrays: dict[str, Array] = {}
        self._given: dict[str, tuple[int, ...]] = {}
        self._map = jax.jit(
            self._mapped, donate_argnums=1, keep_unused=True, out_shardings=self._place
        )

    def decoder(self, params: Any) -> Decoder:
        """A decoder with such weights; that of the last call is gone then.

        Nothing passes through the host, and nothing is compiled after the first call.

        Args:
            params: `nnx.State` of the model's parameters, all of them.

        Raises:
            ConfigError: they are not those of the model, are integers, or deleted.
            Unsupported: they are adapters, quantised, or in the host's memory.
        """
        if not isinstance(params, nnx.State):
            raise ConfigError(
                f"the parameters are a {type(params).__name__}; give "
                "nnx.State, as nnx.state(actor, nnx.Param) does"
            )
        given = self._checked(variables_of(params))
        moved = jax.device_put(given, self._place)
        self._arrays = self._map(moved, self._room())
        model = Decoder(self._config, self._dtype)
        fill(model, self._arrays)
        return model

    def _room(self) -> dict[str, Array]:
        """Arrays whose memory the next weights take."""
        if self._arrays and not any(x.is_deleted() for x in self._arrays.values()):
            return self._arrays
        return {
            path: jnp.zeros(shape.shape, shape.dtype, device=self._place)
            for path, shape in self._shapes.items()
        }

    def _mapped(
        self, given: Mapping[str, Array], room: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The decoder's parameters by path; jitted, `room` is donated and not read."""
        del room
        arrays: dict[str, Array] = {}
        for rule in self._rules:
            parts = [
                _stored(source, given[self._names[source]]).astype(self._dtype)
                for source in rule.sources
            ]
            # What jit gets and gives unchanged it does not copy: the actor's own array
            # would be the next call's to donate.
            joined = jnp.concatenate(parts) if len(parts) > 1 else jnp.copy(parts[0])
            arrays[rule.target] = joined.reshape(self._shapes[rule.target].shape)
        return arrays

    def _checked(self, given: Mapping[str, nnx.Variable[Any]]) -> dict[str, Array]:
        wanted, there = set(self._names.values()), set(given)
        if wanted != there:
            missing, left = wanted - there, there - wanted
            raise ConfigError(
                "the parameters are not those that the rollout was made for: "
                f"{_some(missing)} missing, {_some(left)} unknown; give all of the "
                "actor's nnx.Param"
            )
        arrays = {name: _value(name, variable) for name, variable in given.items()}
        for name, array in arrays.items():
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise ConfigError(
                    f"{name} is {array.dtype}; give floating weights, as the actor has"
                )
            check_not_deleted(name, array)
            shape = self._given.setdefault(name, array.shape)
            if array.shape != shape:
                raise ConfigError(
                    f"{name} is {array.shape}, and {shape} is what the rollout was "
                    "made for; give the parameters of the same model"
                )
        return arrays


def variables_of(params: Any) -> dict[str, nnx.Variable[Any]]:
    """The variables of an `nnx.State`, by path."""
    return {
        ".".join(map(str, path)): variable
        for path, variable in nnx.to_flat_state(params)
    }


def check_plain(variables: Mapping[str, nnx.Variable[Any]]) -> None:
    """Refuses a model that has something besides arrays of parameters.

    Raises:
        Unsupported: it has; for example LoRA's.
    """
    for name, variable in variables.items():
        if type(variable) is not nnx.Param:
            raise Unsupported(
                f"{name} is a {type(variable).__name__}; fdjax serves models whose "
                "variables are all nnx.Param: merge adapters into their weights first"
            )
        _value(name, variable)


def _value(name: str, variable: nnx.Variable[Any]) -> Array:
    value = variable.get_value()
    if isinstance(value, np.ndarray):
        raise Unsupported(
            f"{name} is an array of numpy's, in the host's memory; fdjax takes weights "
            "from the device: jax.device_put them"
        )
    if not isinstance(value, jax.Array):
        raise Unsupported(
            f"{name} is a {type(value).__name__}; fdjax takes arrays, not quantised "
            "weights"
        )
    kind = value.sharding.memory_kind
    default = next(iter(value.sharding.device_set)).default_memory().kind
    if kind not in (None, default):
        raise Unsupported(
            f"{name} is in {kind} memory; fdjax takes weights from the device: leave "
            "ClusterConfig.offload_to_cpu off"
        )
    return value


def _path(source: str) -> str:
    """Where Tunix keeps a tensor of a checkpoint."""
    if source in _ENDS:
        return _ENDS[source]
    found = _LAYER.fullmatch(source)
    assert found is not None, source
    return found[1] + _IN_LAYER[found[2]]


def _stored(source: str, array: Array) -> Array:
    """Tunix's array as a checkpoint has it: of a matrix, outputs first."""
    if array.ndim == 1 or source.endswith("embed_tokens.weight"):
        return array
    # Heads and their sizes are axes of their own: `[E, H, D]`, or `[H, D, E]` of out.
    inputs = array.ndim - 1 if source.endswith("o_proj.weight") else 1
    return array.reshape(math.prod(array.shape[:inputs]), -1).T


def _some(names: set[str]) -> str:
    """Up to three of them."""
    shown = ", ".join(sorted(names)[:3])
    return f"{len(names)} ({shown})" if names else "none"
