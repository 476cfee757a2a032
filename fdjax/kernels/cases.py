"""A call that matters: shared by an operation's tests, its tuner and its benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.notation import Array

type Tag = Literal["ci", "tune", "bench"]


@dataclass(frozen=True)
class Case[C]:
    """One call of an operation, without data.

    Attributes:
        name: the model and the situation it comes from.
        call: the call; `jax.ShapeDtypeStruct`s stand for the arrays.
        tags: "ci" is small enough for a CPU, "tune" is searched for configurations,
            "bench" is timed.
    """

    name: str
    call: C
    tags: frozenset[Tag]


def tagged[C](cases: Iterable[Case[C]], tag: Tag) -> tuple[Case[C], ...]:
    """The cases that carry `tag`."""
    return tuple(case for case in cases if tag in case.tags)


def struct(*shape: int, dtype: jax.typing.DTypeLike) -> Any:
    """What stands for an array of a call; typed to fit there."""
    return jax.ShapeDtypeStruct(shape, dtype)


def noise(random: np.random.Generator, like: Array, *, scale: float = 1.0) -> Array:
    """Normal numbers, repeated at a prime distance: quick also for gigabytes.

    Args:
        random: where the numbers come from.
        like: an array, or a stand-in, of the shape and type wanted.
        scale: standard deviation.
    """
    block = scale * random.standard_normal(65_521, np.float32)
    return jnp.asarray(np.resize(block.astype(like.dtype), like.shape))
