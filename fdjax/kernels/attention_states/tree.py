"""Drafts that branch: which new tokens are ancestors of which, and how deep they lie.

The new tokens of a row may be a tree: a parent lies before its children, and each token
sees the tokens before the new ones, its ancestors and itself. A token's position in its
sequence is then not that of its slot: it is the number of tokens that it follows.
"""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.paged.definition import Sight
from fdjax.notation import Array, Bool, Int32, UInt32

WORD_BITS = 32


def depths(
    tree: UInt32[Array, "T N"], indices: Int32[Array, " T"]
) -> Int32[Array, " T"]:
    """How many new tokens of its row each token follows.

    Args:
        tree: see `Attention`.
        indices: of each token among the new ones of its row.
    """
    words = jnp.arange(tree.shape[1], dtype=jnp.int32)
    before = jnp.clip(indices[:, None] - WORD_BITS * words, 0, WORD_BITS)
    shifted = jnp.uint32(1) << jnp.minimum(before, WORD_BITS - 1).astype(jnp.uint32)
    below = jnp.where(before == WORD_BITS, ~jnp.uint32(0), shifted - 1)
    ancestors = jnp.sum(lax.population_count(tree & below), axis=1, dtype=jnp.int32)
    beyond = jnp.maximum(indices - WORD_BITS * tree.shape[1], 0)
    return ancestors + beyond


def ancestors(
    words: UInt32[Array, " N"], indices: Int32[Array, " K"]
) -> Bool[Array, " K"]:
    """Which tokens a query's bits let it see.

    Args:
        words: of the query.
        indices: of the tokens among the new ones of its row; what has no bit is seen.
    """
    word = words[jnp.clip(indices // WORD_BITS, 0, len(words) - 1)]
    bit = (word >> (indices % WORD_BITS).astype(jnp.uint32)) & 1
    has_bit = (indices >= 0) & (indices < WORD_BITS * len(words))
    return (bit == 1) | ~has_bit


def sight(
    slot: Int32[Array, ""],
    seen: Bool[Array, " K"],
    positions: Int32[Array, " K"],
    window: int | None,
) -> Sight:
    """What one query sees, where positions are not slots.

    Args:
        slot: of the query; it sees nothing where that is negative.
        seen: which slots its row and its tree let it see.
        positions: of the slots.
        window: as in `ScoreSpec`.
    """
    slots = jnp.arange(len(seen), dtype=jnp.int32)
    own = positions.at[slot].get(mode="clip")
    seen = (seen | (slots == slot)) & (slots <= slot)
    if window is not None:
        seen &= positions > own - window
    return Sight(seen[None, None], (positions - own)[None, None])
