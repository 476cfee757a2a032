"""Attention of many new tokens a row over the pages of its sequence."""

from fdjax.kernels.op import Impl, Op
from fdjax.kernels.paged import check_attention
from fdjax.kernels.prefill_attention import blocked, cudnn, reference
from fdjax.notation import Array, Float, Int32

OP = Op(
    "prefill_attention",
    reference.prefill_attention,
    {
        "cudnn": Impl(cudnn.prefill_attention, cudnn.refuse),
        "blocked": Impl(blocked.prefill_attention, blocked.refuse),
    },
)


def prefill_attention(
    q: Float[Array, "B S Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"] | None = None,
    slopes: Float[Array, " Hq"] | None = None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
) -> Float[Array, "B S Hq D"]:
    """Attends causally from `S` tokens of each row to all tokens up to each of them.

    Args:
        q: the queries; query `i` of a row stands at position `starts + i`.
        kv: the KV array; the keys and values of these tokens are already in it.
        page_table: pages of each row in order; ids `>= P` are absent.
        lengths: tokens of each row in `kv`, these included; queries at or past it
            are padding, and their results mean nothing.
        starts: position of the first query of each row; `None` says that every row
            starts at 0 (whole prompts).
        slopes: ALiBi slope of each query head.
        layer: which layer of each page.
        scale: factor of the scores.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`.
        window: a query sees itself and the `window - 1` tokens before it.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    check_attention("prefill_attention", q, kv, page_table, lengths, layer)
    return OP(
        q,
        kv,
        page_table,
        lengths,
        starts,
        slopes,
        layer=layer,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
    )
