"""Attention over pages, for every kind of row."""

from fdjax.kernels import attention_states as definition
from fdjax.kernels.attention_states import OP as STATES
from fdjax.kernels.attention_states import merge_states
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import decode_attention
from fdjax.kernels.paged import KVLayer, PageView
from fdjax.kernels.prefill_attention import OP as PREFILL
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.notation import Array, Float
from fdjax.ops.gradients import differentiable

__all__ = ["attention", "attention_states", "merge_states"]


def attention(
    q: Float[Array, "T Hq D"],
    kv: KVLayer,
    pages: PageView,
    slopes: Float[Array, " Hq"] | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    *,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
) -> Float[Array, "T Hq D"]:
    """Attends from new tokens of each row to all tokens of the row up to each of them.

    One function for every kind of row (FlashInfer, section 3.1): kernels for decoding
    serve rows that are known to have one new token, their last, which
    `PageView.decoding` says and a table of slots; those for ragged batches the others.

    Args:
        q: queries of the new tokens; where each row's are, `pages` says.
        kv: a layer of a cache; the new tokens are in it already.
        pages: the rows: their pages, lengths in tokens, and new tokens.
        slopes: see `ScoreSpec`, as for the others.
        sinks: as above.
        scale: as above.
        soft_cap: as above.
        window: as above, in tokens.

    Returns:
        Of each query; what belongs to no row means nothing, and may be NaN.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    decodes = pages.decodes or pages.by_slot
    if decodes and pages.firsts is None and q.shape[0] == pages.num_rows:
        return _decoding(
            q, kv, pages, slopes, sinks, scale=scale, soft_cap=soft_cap, window=window
        )[0]
    return _ragged(
        q, kv, pages, slopes, sinks, scale=scale, soft_cap=soft_cap, window=window
    )[0]


attention_states = differentiable(STATES, definition.attention_states)
_decoding = differentiable(DECODE, decode_attention)
_ragged = differentiable(PREFILL, prefill_attention)
