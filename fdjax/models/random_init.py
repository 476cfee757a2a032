"""Random weights, made on the device: models of any size without a file."""

import functools
import zlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.layers import Normalisation
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.weights import fill, parameter_shapes
from fdjax.notation import Array

_SCALE = 0.02  # the initializer_range of nearly every family; activations stay finite


def random_weights(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike, seed: int
) -> Decoder:
    """A decoder with random weights on the default device.

    Matrices, tables and biases are normal with a standard deviation of 0.02; norms
    scale by one. A parameter depends on `seed` and its path only.

    Args:
        config: the model.
        dtype: bfloat16, float16 or float32.
        seed: of the random numbers.

    Raises:
        ConfigError: `dtype` is none of these.
    """
    key = jax.random.key(seed)
    # One call per parameter: a single program for all of them takes minutes to
    # compile. Programs are shared by parameters of one shape.
    model = Decoder(config, dtype)
    scales = dict(_scales(model))
    arrays = {
        path: jnp.full(parameter.shape, scales[path], parameter.dtype)
        if path in scales
        else _normal(
            jax.random.fold_in(key, zlib.crc32(path.encode())),
            shape=parameter.shape,
            dtype=parameter.dtype,
        )
        for path, parameter in parameter_shapes(config, dtype=dtype).items()
    }
    fill(model, arrays)
    return model


def _scales(model: Decoder) -> Iterator[tuple[str, float]]:
    """What each norm must store to scale by one."""
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Normalisation):
            name = ".".join(str(part) for part in (*path, "scale"))
            yield name, 1 - module.scale_offset


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _normal(
    key: Array, *, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
) -> Array:
    return (jax.random.normal(key, shape, jnp.float32) * _SCALE).astype(dtype)
