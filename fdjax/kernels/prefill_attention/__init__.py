"""Attention of many new tokens a row over the pages of its sequence."""

from fdjax.kernels.op import Op
from fdjax.kernels.paged import ScoreSpec, check_attention
from fdjax.kernels.prefill_attention import blocked, cudnn, reference
from fdjax.kernels.prefill_attention.arguments import PrefillAttention
from fdjax.notation import Array, Float, Int32

__all__ = ["OP", "PrefillAttention", "prefill_attention"]

OP = Op(
    "prefill_attention",
    reference.prefill_attention,
    {"cudnn": cudnn.IMPL, "blocked": blocked.IMPL},
)


def prefill_attention(
    q: Float[Array, "B S Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"] | None = None,
    slopes: Float[Array, " Hq"] | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
) -> Float[Array, "B S Hq D"]:
    """Attends causally from `S` tokens of each row to all tokens up to each of them.

    The arguments are the fields of `PrefillAttention` and its `ScoreSpec`.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = PrefillAttention(
        q,
        kv,
        page_table,
        lengths,
        ScoreSpec(slopes, scale, soft_cap, window, sinks),
        layer=layer,
        starts=starts,
    )
    check_attention("prefill_attention", call)
    return OP(call)
