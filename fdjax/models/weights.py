"""Weights onto the device: from a checkpoint, one parameter at a time."""

import functools
import math
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fdjax.errors import ConfigError
from fdjax.kernels.weight import Weight
from fdjax.models.assembly import Assembly, match
from fdjax.models.checkpoint import open_checkpoint, read_config
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.families import FAMILIES
from fdjax.models.family import Family
from fdjax.models.parameters import parameters_of, path_of
from fdjax.notation import Array

type Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and the path of the parameter just done."""

_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)
_HEAD = "head.weight"
_EMBEDDING = "embed.weight"


def load(
    folder: pathlib.Path,
    *,
    dtype: jax.typing.DTypeLike,
    on_progress: Progress | None = None,
    config: ModelConfig | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
) -> Decoder:
    """Loads a Hugging Face checkpoint onto the default device.

    Everything is checked before any device memory is taken. Then parameters follow
    one at a time, so that host memory holds less than twice the largest of them.

    Args:
        folder: holds `config.json` and safetensors, as `save_pretrained` writes them.
        dtype: bfloat16, float16 or float32; what is stored otherwise is cast.
        on_progress: called after each parameter.
        config: used in place of `config.json`.
        hf_overrides: fields that replace or add to those of `config.json`.

    Raises:
        ConfigError: `config.json` is missing, unreadable or not supported.
        CheckpointError: the files do not hold the weights that the configuration
            promises; all faults together.
    """
    if config is None:
        config = ModelConfig.from_hf(read_config(folder, hf_overrides))
    elif hf_overrides:
        raise ConfigError("give config or hf_overrides, not both")
    model = Decoder(config, _checked(dtype))
    assemblies = _match(folder, config, _shapes(model))
    fill(model, load_parameters(assemblies, on_progress=on_progress))
    return model


def load_parameters(
    assemblies: Iterable[Assembly], *, on_progress: Progress | None = None
) -> dict[str, Array]:
    """Reads parameters onto the default device, one after the other.

    Args:
        assemblies: what `match` planned.
        on_progress: called after each parameter.

    Returns:
        The arrays by path.

    Raises:
        CheckpointError: see `read_tensor`.
    """
    assemblies = tuple(assemblies)
    total_bytes = sum(assembly.num_bytes for assembly in assemblies)
    done_bytes = 0
    arrays: dict[str, Array] = {}
    for assembly in assemblies:
        arrays[assembly.path] = to_device(assembly.read())
        done_bytes += assembly.num_bytes
        if on_progress is not None:
            on_progress(done_bytes, total_bytes, assembly.path)
    return arrays


def to_device(buffer: np.ndarray) -> Array:
    """Moves a buffer to the default device and waits until it may be let go.

    On a CPU the array may be the buffer itself; never write to it again.
    """
    return jax.block_until_ready(jax.device_put(buffer))


def fill(model: Decoder, arrays: Mapping[str, Array]) -> None:
    """Puts arrays in place of the shapes that a new decoder's parameters hold.

    Args:
        model: the decoder; changed in place.
        arrays: one array per parameter, by path, of its shape and dtype.
    """
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    shapes = _shapes(model)
    assert arrays.keys() == shapes.keys(), arrays.keys() ^ shapes.keys()
    for path, shape in shapes.items():
        array = arrays[path]
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype), path
    filled = [
        (key, variable.replace(_held(variable.get_value(), arrays[path_of(key)])))
        for key, variable in state
    ]
    nnx.update(model, nnx.from_flat_state(filled))


def check_there(model: Any) -> None:
    """Looks at weights that somebody brings, before the old ones go.

    Raises:
        TypeError: it is no `Decoder`.
        ConfigError: a weight is no array of JAX's, or is deleted.
    """
    if not isinstance(model, Decoder):
        raise TypeError(f"the model is a {type(model).__name__}; give a Decoder")
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        name = jax.tree_util.keystr(path)
        if not isinstance(leaf, jax.Array):
            raise ConfigError(
                f"weight {name} is a {type(leaf).__name__}; give arrays of JAX's"
            )
        check_not_deleted(f"weight {name}", leaf)


def check_not_deleted(name: str, array: Array) -> None:
    """Raises `ConfigError` where an array's memory is somebody else's already."""
    if array.is_deleted():
        raise ConfigError(
            f"{name} is deleted, perhaps since a jit took it by donation; give arrays "
            "that are there"
        )


def parameter_shapes(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of every parameter of a model, by path; allocates nothing.

    Raises:
        ConfigError: `dtype` is not bfloat16, float16 or float32.
    """
    return {
        path: _array(held)
        for path, held in held_shapes(config, _checked(dtype)).items()
    }


@functools.lru_cache(maxsize=16)  # what fits is asked of many sizes of one model
def held_shapes(config: ModelConfig, dtype: np.dtype) -> Mapping[str, Array | Weight]:
    """As `parameter_shapes`, as a decoder holds them."""
    return types.MappingProxyType(parameters_of(Decoder(config, dtype)))


def parameter_bytes(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Bytes that parameters of these shapes take on the device."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes.values())


def _checked(dtype: jax.typing.DTypeLike) -> np.dtype:
    checked = np.dtype(dtype)
    if checked not in _DTYPES:
        raise ConfigError(
            f"weights cannot be loaded as {checked}; use bfloat16, float16 or float32"
        )
    return checked


def _shapes(model: Decoder) -> dict[str, jax.ShapeDtypeStruct]:
    every = parameters_of(model).items()
    return {path: _array(held) for path, held in every}


def _array(held: Any) -> Any:
    """Of a parameter, loaded or not: a weight's values, or what it is itself."""
    return jax.tree.leaves(held)[0]


def _held(declared: Any, array: Array) -> Array | Weight:
    """An array in the way in which its parameter is declared to be held."""
    return jax.tree.unflatten(jax.tree.structure(declared), [array])


def _match(
    folder: pathlib.Path,
    config: ModelConfig,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> tuple[Assembly, ...]:
    family = FAMILIES[config.family]
    return match(
        open_checkpoint(folder),
        [
            rule
            for rule in family.rules(config)
            if rule.target in shapes or rule.target != _HEAD
        ],
        shapes,
        ignored=family.ignored,
        prefixes=family.prefixes,
        copies=_tied_copies(family, config),
    )


def _tied_copies(family: Family, config: ModelConfig) -> dict[str, str]:
    """The head's tensor, where a model ties it and a checkpoint stores it anyway."""
    if not config.embedding.tied:
        return {}
    untied = replace(config, embedding=replace(config.embedding, tied=False))
    sources = {rule.target: rule.sources for rule in family.rules(untied)}
    return dict(zip(sources[_HEAD], sources[_EMBEDDING], strict=True))
