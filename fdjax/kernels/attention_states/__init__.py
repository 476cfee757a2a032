"""Attention of any number of new tokens a row over the pages of its sequence."""

from fdjax.kernels.attention_states import cuda, reference
from fdjax.kernels.attention_states.arguments import Attention, KeyRange
from fdjax.kernels.attention_states.states import AttentionState, merge_states
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVLayer, PageView, ScoreSpec, check_attention
from fdjax.notation import Array, Float, UInt32

__all__ = [
    "OP",
    "Attention",
    "AttentionState",
    "KeyRange",
    "attention_states",
    "merge_states",
]

OP = Op("attention_states", reference.attention_states, {"cuda": cuda.CUDA})


def attention_states(
    q: Float[Array, "T Hq D"],
    kv: KVLayer,
    pages: PageView,
    slopes: Float[Array, " Hq"] | None = None,
    sinks: Float[Array, " Hq"] | None = None,
    *,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    tree: UInt32[Array, "T N"] | None = None,
    keys: KeyRange | None = None,
) -> AttentionState:
    """What new tokens of each row find among the row's tokens, or a part of them.

    `fdjax.ops.attention_states` tells of each argument; they are the fields of
    `Attention` and its `ScoreSpec`.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = Attention(
        q,
        kv,
        pages,
        ScoreSpec(slopes, scale, soft_cap, window, sinks),
        tree=tree,
        keys=keys,
    )
    _check(call)
    return OP(call)


def _check(call: Attention) -> None:
    name, num_queries, num_rows = OP.name, call.q.shape[0], call.pages.num_rows
    check_attention(name, call)
    if call.pages.firsts is None and num_queries % max(num_rows, 1):
        raise ValueError(
            f"{name}: {num_queries} queries for {num_rows} rows; say where those of "
            "each row begin, or give every row the same room"
        )
    if call.tree is not None and (
        call.tree.ndim != 2 or not call.tree.shape[1] or len(call.tree) != num_queries
    ):
        raise ValueError(
            f"{name}: the tree is {call.tree.shape}; expected [{num_queries}, N], a "
            "word or more for each query"
        )
    for array in call.keys or ():
        if array.shape != (num_rows,):
            raise ValueError(
                f"{name}: keys of {array.shape}; expected [{num_rows}], one of each row"
            )
