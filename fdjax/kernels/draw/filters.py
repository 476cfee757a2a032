"""Top-k, top-p and min-p without a sort: each is a cutoff below the best token.

Write `gap` for how far a token lies below the best one of its row, in units of
`temperature`: its probability is `exp(-gap)` times that of the best token. Every
filter keeps the tokens whose gap is at most some cutoff, so all three together are one
number a row. Gaps are not negative, hence their bits as integers are in the order of
the gaps, and a cutoff is found exactly, bit by bit: 31 passes over the row, each one
fused reduction, against a sort that moves every row many times.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.row_sum import row_sum
from fdjax.notation import Array, Bool, Float, Int32

_BITS = 31  # of a float32 that is not negative
KEEP_ALL = 2**_BITS - 1


def kept(
    gaps: Float[Array, "B V"],
    top_k: Int32[Array, " B"] | None,
    top_p: Float[Array, " B"] | None,
    min_p: Float[Array, " B"] | None,
) -> Bool[Array, "B V"]:
    """Which tokens all of a row's filters keep; always the best one.

    As in vLLM, min-p comes first, then top-k, and top-p sees the distribution that is
    left, renormalised. Unlike there, tokens of equal probability share their fate:

    * min-p keeps tokens of at least `min_p` times the highest probability;
    * top-k keeps the tokens no less likely than the k-th likeliest (more than `k`
      when it has ties);
    * top-p keeps the tokens no less likely than the last one of the shortest run of
      likeliest tokens whose probabilities reach `top_p`.

    Args:
        gaps: `(best logit - logit) / temperature`, not negative.
        top_k: 0 keeps all, and so does `None` in every row.
        top_p: 1 keeps all, and so does `None`.
        min_p: 0 keeps all, and so does `None`.
    """
    keys = lax.bitcast_convert_type(gaps, jnp.int32)
    cutoff = jnp.full(gaps.shape[0], KEEP_ALL, jnp.int32)
    if min_p is not None:
        cutoff = _min_p_cutoff(min_p)
    if top_k is not None:
        cutoff = jnp.minimum(cutoff, _top_k_cutoff(keys, top_k))
    if top_p is not None:
        cutoff = jnp.minimum(cutoff, _top_p_cutoff(keys, cutoff, top_p))
    return keys <= cutoff[:, None]


def _min_p_cutoff(min_p: Float[Array, " B"]) -> Int32[Array, " B"]:
    # abs, not minus: -log(1) is -0.0, whose bits are not those of 0.
    return lax.bitcast_convert_type(jnp.abs(jnp.log(min_p)), jnp.int32)


def _top_k_cutoff(
    keys: Int32[Array, "B V"], top_k: Int32[Array, " B"]
) -> Int32[Array, " B"]:
    def enough(cutoff: Int32[Array, " B"]) -> Bool[Array, " B"]:
        within = keys <= cutoff[:, None]
        return jnp.sum(within, axis=-1, dtype=jnp.int32) >= top_k

    return jnp.where(top_k > 0, _smallest(enough, num_rows=len(top_k)), KEEP_ALL)


def _top_p_cutoff(
    keys: Int32[Array, "B V"], cutoff: Int32[Array, " B"], top_p: Float[Array, " B"]
) -> Int32[Array, " B"]:
    def mass(cutoff: Int32[Array, " B"]) -> Float[Array, " B"]:
        weights = jnp.exp(-lax.bitcast_convert_type(keys, jnp.float32))
        return row_sum(jnp.where(keys <= cutoff[:, None], weights, 0.0))[:, 0]

    target = top_p * mass(cutoff)
    found = _smallest(lambda c: mass(c) >= target, num_rows=len(top_p))
    return jnp.where(top_p < 1, found, KEEP_ALL)


def _smallest(
    enough: Callable[[Int32[Array, " B"]], Bool[Array, " B"]], *, num_rows: int
) -> Int32[Array, " B"]:
    """The smallest cutoff that is enough, or `KEEP_ALL` where none is.

    Invariant: the answer's bits above the current one are those of `cutoff`. It is
    `candidate` or more exactly where `candidate - 1` is not enough.
    """

    def settle_bit(i: Int32[Array, ""], cutoff: Int32[Array, " B"]) -> Array:
        candidate = cutoff + jnp.left_shift(1, _BITS - 1 - i)
        return jnp.where(enough(candidate - 1), cutoff, candidate)

    return lax.fori_loop(0, _BITS, settle_bit, jnp.zeros(num_rows, jnp.int32))
