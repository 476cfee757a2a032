"""Attention of many new tokens a row over the pages of its sequence."""

from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVLayer, PageView, ScoreSpec, check_attention
from fdjax.kernels.prefill_attention import cudnn, handler, reference
from fdjax.kernels.prefill_attention.arguments import Attended, PrefillAttention
from fdjax.notation import Array, Float

__all__ = ["OP", "PrefillAttention", "prefill_attention"]

OP = Op(
    "prefill_attention",
    reference.prefill_attention,
    {"cudnn": cudnn.IMPL, "cuda": handler.CUDA, "cpu": handler.CPU},
)


def prefill_attention(
    q: Float[Array, "T Hq D"],
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
    """Attends causally from new tokens of each row to all tokens up to each of them.

    The queries are a ragged batch (FlashInfer, section 3.1): those of a row follow one
    another, and nothing need lie between rows.

    The arguments are the fields of `PrefillAttention` and its `ScoreSpec`.

    Returns:
        The result `[T, Hq, D]`, and of each row, `[B]`, how many query heads of its
        tokens left the bounds of `unified` and were computed again; zeros where the
        implementation has the synchronised softmax alone.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = PrefillAttention(
        q,
        kv,
        pages,
        ScoreSpec(slopes, scale, soft_cap, window, sinks),
        unified=unified,
    )
    check_attention("prefill_attention", call)
    if pages.firsts is None and q.shape[0] % max(pages.num_rows, 1):
        raise ValueError(
            f"prefill_attention: {q.shape[0]} queries for {pages.num_rows} rows; say "
            "where those of each row begin, or give every row the same room"
        )
    return OP(call)
