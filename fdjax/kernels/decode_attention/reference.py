"""The definition of `decode_attention`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import attend, highest_of, scores_of
from fdjax.notation import Array, Float, Int32


def decode_attention(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`.

    The scheme changes no mathematics, so only the count depends on `unified`.
    """
    (keys, values), held = call.gathered(), call.held()
    lengths = jnp.minimum(call.pages.lengths, call.max_tokens)
    query, positions = call.q[:, None], (lengths - 1)[:, None]
    out = attend(query, keys, values, positions, held, call.scores)[:, 0]
    if call.unified is None:
        counts = (call.q.shape[0], call.kv.cache.num_kv_heads)
        return out, jnp.zeros(counts, jnp.int32)
    scores = scores_of(query, keys, positions, held, call.scores)
    highest = highest_of(scores, call.scores.sinks)[..., 0]
    return out, recomputed_rows(highest, call.unified)


def recomputed_rows(
    highest: Float[Array, "B Hkv G"], unified: UnifiedMax
) -> Int32[Array, "B Hkv"]:
    """How many query heads' largest scores leave the bounds; -inf sees no token."""
    above = highest >= unified.phi + unified.high
    below = (highest <= unified.phi + unified.low) & (highest > -jnp.inf)
    return jnp.sum(above | below, axis=-1, dtype=jnp.int32)
