"""Attention of one new token a row over the pages of its sequence."""

from fdjax.kernels.decode_attention import cpu, cuda, pallas, reference
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Op
from fdjax.kernels.paged import check_attention
from fdjax.notation import Array, Float, Int32

__all__ = ["OP", "UnifiedMax", "decode_attention", "decode_attention_counted"]

OP = Op(
    "decode_attention",
    reference.decode_attention,
    {"cuda": cuda.IMPL, "pallas": pallas.IMPL, "cpu": cpu.IMPL},
)


def decode_attention(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None = None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    unified: UnifiedMax | None = None,
) -> Float[Array, "B Hq D"]:
    """Attends from the last token of each row to all tokens of the row.

    Args:
        q: the queries, at position `lengths - 1` of each row.
        kv: the KV array; the row's own key and value are already in it.
        page_table: pages of each row in order; ids `>= P` are absent.
        lengths: tokens of each row in `kv`; a row of length 0 gives zeros.
        slopes: ALiBi slope of each query head.
        layer: which layer of each page.
        scale: factor of the scores.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`.
        window: only the last `window` tokens are seen.
        unified: the asynchronous scheme with this maximum; `None` is the synchronised
            one. The result is the same up to rounding.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    out, _ = decode_attention_counted(
        q,
        kv,
        page_table,
        lengths,
        slopes,
        layer=layer,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
        unified=unified,
    )
    return out


def decode_attention_counted(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None = None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    unified: UnifiedMax | None = None,
) -> tuple[Float[Array, "B Hq D"], Int32[Array, "B Hkv"]]:
    """`decode_attention`, and how many query heads left the bounds of `unified`.

    Returns:
        The result, and for each row and key/value head the number of its query heads
        that were computed again; zeros with the synchronised scheme.

    Raises:
        ValueError: as `decode_attention`.
    """
    check_attention("decode_attention", q, kv, page_table, lengths, layer)
    return OP(
        q,
        kv,
        page_table,
        lengths,
        slopes,
        layer=layer,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
        unified=unified,
    )
