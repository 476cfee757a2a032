"""Attention of one new token a row over the pages of its sequence."""

from fdjax.kernels.decode_attention import cpu, cuda, pallas, reference
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVLayer, PageView, ScoreSpec, check_attention
from fdjax.notation import Array, Float

__all__ = ["OP", "DecodeAttention", "UnifiedMax", "decode_attention"]

OP = Op(
    "decode_attention",
    reference.decode_attention,
    {"cuda": cuda.IMPL, "pallas": pallas.IMPL, "cpu": cpu.IMPL},
)


def decode_attention(
    q: Float[Array, "B Hq D"],
    kv: KVLayer,
    pages: PageView,
    slopes: Float[Array, " Hq"] | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    *,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    unified: UnifiedMax | None = None,
) -> Attended:
    """Attends from the last token of each row to all tokens of the row.

    The arguments are the fields of `DecodeAttention` and its `ScoreSpec`.

    Returns:
        The result `[B, Hq, D]`, and for each row and key/value head, `[B, Hkv]`, the
        number of its query heads that left the bounds of `unified` and were computed
        again; zeros with the synchronised scheme.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = DecodeAttention(
        q,
        kv,
        pages,
        ScoreSpec(slopes, scale, soft_cap, window, sinks),
        unified=unified,
    )
    check_attention("decode_attention", call, takes_slots=True)
    if q.shape[0] != pages.num_rows:
        raise ValueError(
            f"decode_attention: q has {q.shape[0]} rows, page_table {pages.num_rows}"
        )
    return OP(call)
