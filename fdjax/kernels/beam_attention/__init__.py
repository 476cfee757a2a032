"""Attention of beams: over a prompt that a group shares, and over their own tokens."""

from fdjax.kernels.beam_attention import cuda, reference
from fdjax.kernels.beam_attention.arguments import BeamAttention, BeamView
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVLayer, PageView, ScoreSpec, check_attention
from fdjax.notation import Array, Float

__all__ = ["OP", "BeamAttention", "BeamView", "beam_attention"]

OP = Op("beam_attention", reference.beam_attention, {"cuda": cuda.IMPL})


def beam_attention(
    q: Float[Array, "B Hq D"],
    kv: KVLayer,
    pages: PageView,
    beams: BeamView,
    slopes: Float[Array, " Hq"] | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    *,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
) -> Float[Array, "B Hq D"]:
    """Attends from the last token of each beam to the prompt and to its own tokens.

    Segment KV (Liu et al., "Efficient LLM inference solution on Intel GPU", sections
    3.2 and 3.3): the prompt lies once in the pages of its group. The tokens after it
    lie in pages of the beams, where they stay when beams are reordered: an index says
    in which beam's page the key of each step is.

    The arguments are the fields of `BeamAttention` and its `ScoreSpec`.

    Returns:
        The result; of no meaning for beams that do not exist.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    scores = ScoreSpec(slopes, scale, soft_cap, window, sinks)
    call = BeamAttention(q, kv, pages, scores, beams)
    check_attention(OP.name, call)
    groups = beams.prompt_lengths.shape[0]
    if q.shape[0] != pages.num_rows or q.shape[0] % max(groups, 1):
        raise ValueError(
            f"{OP.name}: {q.shape[0]} queries, {pages.num_rows} rows of pages and "
            f"{groups} groups; expected as many queries as rows, as many in each group"
        )
    if beams.origins.shape[0] != q.shape[0]:
        raise ValueError(
            f"{OP.name}: origins of {beams.origins.shape[0]} beams, but {q.shape[0]} "
            "queries"
        )
    return OP(call)
