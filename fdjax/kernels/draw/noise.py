"""Gumbel noise that depends on nothing but a key and a step."""

import jax
import jax.numpy as jnp

from fdjax.notation import Array, Float, Int32, UInt32


def gumbel(
    keys: UInt32[Array, "B 2"], steps: Int32[Array, " B"], *, vocab_size: int
) -> Float[Array, "B V"]:
    """Independent Gumbel(0, 1) noise for each token of each row.

    The token with the largest sum of log-probability and noise is a draw from the
    distribution (Gumbel-max).

    Args:
        keys: data of a threefry key each.
        steps: tokens each row has emitted; a row's noise depends only on its key
            and its step.
        vocab_size: tokens of the model, `V`.
    """

    def row_bits(key: Array, step: Array) -> UInt32[Array, " V"]:
        typed = jax.random.wrap_key_data(key, impl="threefry2x32")
        return jax.random.bits(
            jax.random.fold_in(typed, step), (vocab_size,), jnp.uint32
        )

    return gumbel_of_bits(jax.vmap(row_bits)(keys, steps))


def gumbel_of_bits(bits: UInt32[Array, "B V"]) -> Float[Array, "B V"]:
    """Gumbel(0, 1) noise of uniform random bits, largest where the bits are 0.

    Uniform numbers of 23 random bits, the usual ones of float32, are too coarse for
    Gumbel-max: among 128,000 tokens the winner's noise comes from the last steps next
    to one, where tokens tie. Here all 32 bits count: the uniform number is smallest,
    and finest, where the noise is largest.
    """
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    # Rounding reaches 1, where the noise would be -inf and no token could be drawn.
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
