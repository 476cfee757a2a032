"""Whether a model's programs can be batch-invariant here, before anything is loaded."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.errors import ConfigError, Unsupported
from fdjax.generate.steps import decode, extend
from fdjax.kernels import op
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder


def check_batch_invariant(config: ModelConfig, layout: KVLayout) -> None:
    """Traces a layer of each kind, in prefill and decoding; computes nothing.

    Args:
        config: the model.
        layout: of its KV array.

    Raises:
        ConfigError: an operation has no batch-invariant implementation on this device.
    """
    for kind in config.kinds:
        shallow = replace(config, layers=(kind,))
        model = Decoder(shallow, layout.dtype)
        kv = KVCache.page_major(
            _struct(*replace(layout, num_layers=1).shape, dtype=layout.dtype)
        )
        tokens, table = _struct(2, dtype=jnp.int32), _struct(2, 1, dtype=jnp.int32)
        try:
            with op.batch_invariant():
                jax.eval_shape(decode, model, kv, tokens, tokens, table)
                jax.eval_shape(extend, model, kv, tokens, tokens, table, tokens)
        except Unsupported as error:
            raise ConfigError(
                f"batch_invariant is on, but {error}; leave it out, or run on a CPU "
                "(JAX_PLATFORMS=cpu)"
            ) from error


def as_config_says[**P, R](
    config: ModelConfig, function: Callable[P, R]
) -> Callable[P, R]:
    """A function to trace where only batch-invariant implementations serve, or itself.

    What jit has compiled of a function itself it finds again for another model.
    """
    if not config.batch_invariant:
        return function

    @wraps(function)
    def restricted(*args: P.args, **kwargs: P.kwargs) -> R:
        with op.batch_invariant():
            return function(*args, **kwargs)

    return restricted


def _struct(*shape: int, dtype: jax.typing.DTypeLike) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)
