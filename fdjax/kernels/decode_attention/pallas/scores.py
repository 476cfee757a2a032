"""What may be done to scores before the softmax: functions that the kernel calls.

A score function gets a tile of scores, `[T, N]` float32 in registers, and returns one
of the same shape. It is traced into the kernel, so it may use `jax.numpy`'s elementwise
functions and Python scalars, but capture no array; what differs from query head to
query head comes as parameters, `[Hq]` float32 each.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from fdjax.notation import Array

type ScoreFn = Callable[..., Array]
"""`score(scores, query_position, key_positions, *parameters) -> scores`.

Args:
    scores: `[T, N]` float32, times the scale.
    query_position: int32 scalar, the position of the row's newest token.
    key_positions: `[T, N]` int32, the position of each score's key.
    parameters: `[T, N]` float32 each, the parameter of each score's query head.
"""


@functools.cache
def soft_capped(cap: float) -> ScoreFn:
    """`cap * tanh(scores / cap)`.

    By the exponential: `tanh` of the hardware has 11 bits, too few for a score.
    """

    def score(scores: Array, *_: Array) -> Array:
        return cap - 2.0 * cap / (jnp.exp(scores * (2.0 / cap)) + 1.0)

    return score


def alibi(scores: Array, query: Array, keys: Array, slopes: Array) -> Array:
    """ALiBi: `scores + slope * (key position - query position)`."""
    return scores + slopes * (keys - query).astype(jnp.float32)


@functools.cache
def chain(
    first: ScoreFn | None, second: ScoreFn | None, *, takes: int
) -> ScoreFn | None:
    """`second` of `first`, which takes the first so many parameters."""
    if first is None or second is None:
        return first or second

    def score(scores: Array, query: Array, keys: Array, *parameters: Array) -> Array:
        scores = first(scores, query, keys, *parameters[:takes])
        return second(scores, query, keys, *parameters[takes:])

    return score
