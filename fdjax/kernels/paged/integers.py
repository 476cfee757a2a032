"""Places, pages and lengths as the operations count them: in 32 bits, with a sign."""

import operator
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fdjax.notation import Array, Int32

LOWEST, HIGHEST = -(2**31), 2**31 - 1


def int32_of(owner: str, name: str, value: Any) -> Int32[Array, "..."]:
    """An argument of whole numbers, of any type of them, as int32.

    -1 stands for nothing, and a page is multiplied by its size: neither is right in a
    type without a sign, or in one of fewer bits. What does not fit is the number next
    to it that does: no page and no position is as large.

    Args:
        owner: whose argument it is.
        name: of the argument.
        value: what the caller gave; what is int32 comes back as it is.

    Raises:
        TypeError: it is no array.
        ValueError: its numbers are not whole.
    """
    if getattr(value, "dtype", None) == jnp.int32:
        return value
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"{owner}: {name} is {kind(value)}; give an array, by jnp.asarray"
        )
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"{owner}: {name} is {value.dtype}; cast it to a type that is integer"
        )
    return _within(value).astype(jnp.int32)


def whole_number(owner: str, name: str, value: Any, *, least: int | None = None) -> int:
    """A static argument that counts something, or names one of several things.

    Args:
        owner: whose argument it is.
        name: of the argument.
        value: what the caller gave.
        least: what it is at least; `None`: it may be negative.

    Raises:
        TypeError: it is traced, or no whole number.
        ValueError: it is less.
    """
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{owner}: {name} is traced; it must be static, give a whole number"
        )
    given: Any = None if isinstance(value, bool) else value
    try:
        whole = operator.index(given)
    except TypeError:
        raise TypeError(
            f"{owner}: {name} is {kind(value)}; give a whole number"
        ) from None
    if least is not None and whole < least:
        raise ValueError(f"{owner}: {name} is {whole}; it must be {least} or more")
    return whole


def check_shape(owner: str, name: str, value: Any, *axes: str) -> None:
    """Raises where an argument is no array, or not of so many axes.

    Args:
        owner: whose argument it is.
        name: of the argument.
        value: what the caller gave; shapes may stand in for arrays.
        axes: how messages write the axes that it must have; none: any.

    Raises:
        TypeError: it is no array.
        ValueError: it has another number of axes.
    """
    if not hasattr(value, "shape"):
        raise TypeError(
            f"{owner}: {name} is {kind(value)}; give an array, by jnp.asarray"
        )
    if axes and len(value.shape) != len(axes):
        raise ValueError(
            f"{owner}: {name} is {value.shape}; expected [{', '.join(axes)}]"
        )


def _within(value: Any) -> Any:
    """By numpy, what is numpy's: JAX would cut int64 to 32 bits first."""
    lib: Any = jnp if isinstance(value, jax.Array) else np
    held = jnp.iinfo(value.dtype)
    if held.max > HIGHEST:
        value = lib.minimum(value, lib.asarray(HIGHEST, value.dtype))
    if held.min < LOWEST:
        value = lib.maximum(value, lib.asarray(LOWEST, value.dtype))
    return value


def kind(value: Any) -> str:
    """What a value is, with an article."""
    if isinstance(value, jax.Array | np.ndarray):
        return "an array"
    name = type(value).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return "None" if value is None else f"{article} {name}"
