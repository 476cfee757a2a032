"""Tokens that rows may emit at all, and sequences of tokens that they may not."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.fields import MAX_BAD_SEQUENCES, MAX_BAD_TOKENS
from fdjax.generate.masks import allowed_bits, allows, num_words
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import OUT_OF_REACH
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree

# Further off than a token that may not come now, penalised or not: where a row has
# nothing else, a list of what may come at all is kept.
_UNLISTED = 1e3 * OUT_OF_REACH
_ANY, _NONE = -1, -2


@pytree
class TokenLists:
    """What rows may emit, and what they may not.

    Attributes:
        allowed: a bit for each token, as in `fdjax.generate.masks`.
        before: tokens that make the next one impossible, the latest last; -1 is any.
        banned: that next one; `V` where there is none.
    """

    allowed: UInt32[Array, "B words"]
    before: Int32[Array, "B num_bad L"]
    banned: Int32[Array, "B num_bad"]


def init_token_lists(
    params: Sequence[SamplingParams], *, vocab_size: int
) -> TokenLists:
    """Lists of a batch: one `params` a row, whose `bad_words` are token ids."""
    rows, length = len(params), MAX_BAD_TOKENS - 1
    allowed = np.full((rows, num_words(vocab_size)), np.uint32(2**32 - 1))
    before = np.full((rows, MAX_BAD_SEQUENCES, length), _ANY, np.int32)
    banned = np.full((rows, MAX_BAD_SEQUENCES), vocab_size, np.int32)
    for row, one in enumerate(params):
        if one.allowed_token_ids is not None:
            allowed[row] = allowed_bits(one.allowed_token_ids, vocab_size=vocab_size)
        for place, word in enumerate(one.bad_words):
            assert not isinstance(word, str), word
            *first, last = word
            before[row, place, length - len(first) :] = first
            banned[row, place] = last
    return TokenLists(*jax.device_put((allowed, before, banned)))


def init_recent(outputs: Sequence[Sequence[int]]) -> Int32[Array, "B L"]:
    """The last tokens of each row's output, the latest last; -2 where there is none."""
    length = MAX_BAD_TOKENS - 1
    recent = np.full((len(outputs), length), _NONE, np.int32)
    for row, output in enumerate(outputs):
        last = output[-length:]
        recent[row, length - len(last) :] = last
    return jax.device_put(recent)


def listed(
    logits: Float[Array, "B V"], lists: TokenLists, recent: Int32[Array, "B L"]
) -> Float[Array, "B V"]:
    """Logits with what rows may not emit out of reach.

    They stay finite: where a mask leaves a row nothing else, they are chosen.

    Args:
        logits: of the next token.
        lists: the rows' lists.
        recent: the last tokens that each row has emitted, the latest last.
    """
    bits = allows(lists.allowed, vocab_size=logits.shape[-1])
    logits = jnp.where(bits, logits, jnp.minimum(logits, _UNLISTED))
    same = (lists.before == _ANY) | (lists.before == recent[:, None, :])
    ids = jnp.where(jnp.all(same, axis=-1), lists.banned, logits.shape[-1])
    rows = jnp.arange(logits.shape[0])[:, None]
    return logits.at[rows, ids].min(OUT_OF_REACH, mode="drop")


def add_recent(
    recent: Int32[Array, "B L"],
    tokens: Int32[Array, " B"],
    emitted: Bool[Array, " B"],
) -> Int32[Array, "B L"]:
    """The last tokens after the rows where `emitted` have emitted their token."""
    after = jnp.concatenate([recent[:, 1:], tokens[:, None]], axis=1)
    return jnp.where(emitted[:, None], after, recent)
