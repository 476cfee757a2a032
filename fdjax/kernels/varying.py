"""Over which axes of a `jax.shard_map` a result varies: as what it was made of does."""

from typing import Any

import jax


def varying_like[R](result: R, operands: Any) -> R:
    """A result that varies over every axis over which one of its operands does.

    For JAX what a custom call gives is alike on all devices, whatever it was given: a
    `shard_map` that checks (`check_vma`, its default) then takes it for replicated.

    Args:
        result: arrays.
        operands: arrays.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return result
    axes = frozenset[Any]().union(*map(_varying, jax.tree.leaves(operands)))
    return jax.tree.map(lambda array: _over(array, axes), result)


def _varying(array: Any) -> frozenset[Any]:
    return jax.typeof(array).mat.varying


def _over(array: jax.Array, axes: frozenset[Any]) -> jax.Array:
    missing = tuple(axes - _varying(array))
    return jax.lax.pcast(array, missing, to="varying") if missing else array
