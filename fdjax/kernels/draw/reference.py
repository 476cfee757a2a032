"""The definition of `draw`: Gumbel-max over the tokens that the filters keep."""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.draw.arguments import Draw
from fdjax.kernels.draw.filters import kept
from fdjax.kernels.draw.noise import gumbel
from fdjax.notation import Array, Float, Int32


def draw(call: Draw) -> Int32[Array, " B"]:
    """See `fdjax.kernels.draw.draw`."""
    return lax.argmax(scores(call), axis=1, index_dtype=jnp.int32)


def scores(call: Draw) -> Float[Array, "B V"]:
    """What is largest at the token that `draw` chooses.

    The logits of rows that do not draw; of others the noise less the gap below the best
    token, whose maximum is a draw from the row's distribution.
    """
    logits = call.logits
    if call.keys is None or call.steps is None or call.temperature is None:
        return logits
    greedy = call.temperature[:, None] == 0
    temperature = jnp.where(greedy, 1.0, call.temperature[:, None])
    gaps = (jnp.max(logits, axis=-1, keepdims=True) - logits) / temperature
    perturbed = gumbel(call.keys, call.steps, vocab_size=logits.shape[-1]) - gaps
    keep = kept(gaps, call.top_k, call.top_p, call.min_p)
    perturbed = jnp.where(keep, perturbed, -jnp.inf)
    return jnp.where(greedy, logits, perturbed)
