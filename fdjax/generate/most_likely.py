"""The most likely tokens of each row."""

import jax
import jax.numpy as jnp
from jax import lax

from fdjax import device
from fdjax.notation import Array, Float, Int32

FEW = 32
"""As many are found one by one on a GPU."""

type _Found = tuple[Array, Array]


def most_likely(
    logits: Float[Array, "B V"], count: int
) -> tuple[Float[Array, "B N"], Int32[Array, "B N"]]:
    """The highest logits and their tokens: the highest first, then the lowest id.

    XLA sorts whole rows of a GPU for that: for 256 rows of 128,256 a gigabyte to be
    moved several times, in four arrays of 131 MB. One by one, a few of them are as many
    reads of the logits, and need no room.

    Args:
        logits: of each row.
        count: `N`, at most `V`; static.
    """
    if device.platform() != "gpu" or count > FEW:
        values, tokens = lax.top_k(logits, count)
        return values, tokens
    rows, size = logits.shape
    ids = lax.broadcasted_iota(jnp.int32, (rows, size), 1)
    found: list[_Found] = []
    value = jnp.full((rows, 1), jnp.inf)
    token = jnp.full((rows, 1), -1, jnp.int32)
    for _ in range(count):
        left = (logits < value) | ((logits == value) & (ids > token))
        best = _highest(jnp.where(left, logits, -jnp.inf), jnp.where(left, ids, size))
        found.append(best)
        value, token = best[0][:, None], best[1][:, None]
    return (
        jnp.stack([values for values, _ in found], axis=1),
        jnp.stack([tokens for _, tokens in found], axis=1),
    )


def _highest(values: Float[Array, "B V"], ids: Int32[Array, "B V"]) -> _Found:
    """Of each row, and of equal ones that with the lowest id."""

    def better(one: _Found, other: _Found) -> _Found:
        first = (one[0] > other[0]) | ((one[0] == other[0]) & (one[1] < other[1]))
        return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)

    nothing = jnp.float32(-jnp.inf), jnp.int32(2**31 - 1)
    return lax.reduce((values, ids), nothing, better, (1,))
