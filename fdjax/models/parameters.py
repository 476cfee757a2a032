"""Parameters by their paths in a module."""

import functools
from collections.abc import Iterable
from typing import Any

from flax import nnx

from fdjax.kernels.weight import Weight
from fdjax.notation import Array


def parameters_of(module: nnx.Module) -> dict[str, Array | Weight]:
    """A module's parameters by path, as they are held."""
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {path_of(key): variable.get_value() for key, variable in state}


def parameter_of(module: nnx.Module, path: str) -> Array | Weight:
    """One of them: to find all takes longer than to trace the rest of a step."""
    found: Any = module
    for part in _parts(path):
        found = found[part] if isinstance(part, int) else getattr(found, part)
    return found.get_value()


@functools.cache
def _parts(path: str) -> tuple[int | str, ...]:
    """Names of attributes, and places in lists."""
    return tuple(int(one) if one.isdigit() else one for one in path.split("."))


def path_of(key: Iterable[Any]) -> str:
    """The path of a parameter from its key in a flat state."""
    return ".".join(str(part) for part in key)
