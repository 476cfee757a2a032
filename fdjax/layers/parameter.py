"""Parameters that are declared before they are loaded."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def declare(*shape: int, dtype: jax.typing.DTypeLike) -> nnx.Param[jax.Array]:
    """A parameter that holds its shape and dtype until a loader fills it."""
    promise: Any = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return nnx.Param(promise)
