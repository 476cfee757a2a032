"""The definition of `decode_attention`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import attend, gather_pages, scores_of
from fdjax.notation import Array, Float, Int32


def decode_attention(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    unified: UnifiedMax | None = None,
) -> tuple[Float[Array, "B Hq D"], Int32[Array, "B Hkv"]]:
    """See `fdjax.kernels.decode_attention.decode_attention_counted`.

    The scheme changes no mathematics, so only the count depends on `unified`.
    """
    keys, values = gather_pages(kv, page_table, layer=layer)
    query, positions = q[:, None], (lengths - 1)[:, None]
    out = attend(
        query,
        keys,
        values,
        positions,
        lengths,
        slopes,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
    )[:, 0]
    if unified is None:
        return out, jnp.zeros((q.shape[0], kv.shape[4]), jnp.int32)
    scores = scores_of(
        query,
        keys,
        positions,
        lengths,
        slopes,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
    )
    return out, recomputed_rows(jnp.max(scores[..., 0, :], axis=-1), unified)


def recomputed_rows(
    highest: Float[Array, "B Hkv G"], unified: UnifiedMax
) -> Int32[Array, "B Hkv"]:
    """How many query heads' largest scores leave the bounds; -inf sees no token."""
    above = highest >= unified.phi + unified.high
    below = (highest <= unified.phi + unified.low) & (highest > -jnp.inf)
    return jnp.sum(above | below, axis=-1, dtype=jnp.int32)
