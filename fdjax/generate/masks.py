"""Which tokens rows may emit, a bit each: 32 tokens to a word, the first the lowest."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.notation import Array, Bool, Float, Int32, UInt32

_BITS = 32
_ALL = 2**_BITS - 1


def num_words(vocab_size: int) -> int:
    """Words of a row's mask."""
    return -(-vocab_size // _BITS)


def stack_masks(
    masks: Sequence[np.ndarray | None], *, num_rows: int, vocab_size: int
) -> np.ndarray:
    """Masks as rows of one array; rows without one may emit all tokens."""
    stacked = np.full((num_rows, num_words(vocab_size)), _ALL, np.uint32)
    for row, mask in enumerate(masks):
        if mask is not None:
            stacked[row] = mask
    return stacked


def init_masks(
    masks: Sequence[np.ndarray | None], *, num_rows: int, vocab_size: int
) -> UInt32[Array, "B words"]:
    """The same on the device."""
    return jax.device_put(stack_masks(masks, num_rows=num_rows, vocab_size=vocab_size))


def allowed_bits(token_ids: Sequence[int], *, vocab_size: int) -> np.ndarray:
    """A row's mask that lets these tokens come, and no others."""
    bits = np.zeros(num_words(vocab_size) * _BITS, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def allows(allowed: UInt32[Array, "B words"], *, vocab_size: int) -> Bool[Array, "B V"]:
    """Masks with an element for each token."""
    bits = (allowed[:, :, None] >> jnp.arange(_BITS, dtype=jnp.uint32)) & jnp.uint32(1)
    return bits.reshape(allowed.shape[0], -1)[:, :vocab_size] != 0


def place_of(
    tokens: Int32[Array, " *rows"],
) -> tuple[Int32[Array, " *rows"], UInt32[Array, " *rows"]]:
    """Which word of a mask has each token's bit, and that bit."""
    bit = jnp.uint32(1) << (tokens % _BITS).astype(jnp.uint32)
    return tokens // _BITS, bit


def masked(
    logits: Float[Array, "B V"], allowed: UInt32[Array, "B words"]
) -> Float[Array, "B V"]:
    """Logits with what a row may not emit at -inf."""
    return jnp.where(allows(allowed, vocab_size=logits.shape[1]), logits, -jnp.inf)
