"""Parameters that are declared before they are loaded."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.kernels.weight import Dense, Weight


def declare(*shape: int, dtype: jax.typing.DTypeLike) -> nnx.Param[jax.Array]:
    """A parameter that holds its shape and dtype until a loader fills it."""
    return nnx.Param(_promise(*shape, dtype=dtype))


def declare_weight(
    rows: int, columns: int, *, dtype: jax.typing.DTypeLike
) -> nnx.Param[Weight]:
    """A weight `[rows, columns]` whose arrays are still to be loaded."""
    return nnx.Param(Dense(_promise(rows, columns, dtype=dtype)))


def _promise(*shape: int, dtype: jax.typing.DTypeLike) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
