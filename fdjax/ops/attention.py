"""Attention over pages, for every kind of row."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fdjax.kernels import attention_states as states
from fdjax.kernels.attention_states import AttentionState, KeyRange
from fdjax.kernels.attention_states import merge_states as _merge
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import decode_attention
from fdjax.kernels.paged import (
    KVLayer,
    PagedAttention,
    PageView,
    ScoreSpec,
    check_attention,
)
from fdjax.kernels.paged.integers import HIGHEST
from fdjax.kernels.prefill_attention import OP as PREFILL
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.kernels.prefill_plan.tiles import TILE_ROWS
from fdjax.notation import Array, Bool, Float, UInt32
from fdjax.ops import calls
from fdjax.ops.gradients import differentiable

__all__ = ["attention", "attention_states", "merge_states"]


@calls.named
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
        pages: the rows: their pages, lengths in tokens, and new tokens. Tokens that a
            row's table has no room for are not there: as keys nobody sees them, and
            their queries find nothing.
        slopes: ALiBi slope of each query head, or `None`.
        sinks: of each query head the score of one more token, which every query sees
            and whose value is zero, or `None`: neither scaled nor capped.
        scale: factor of the dot products. Static, as the next two: under `jax.jit`
            numbers, or named in its `static_argnames`.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; above 0.
        window: a query sees itself and the `window - 1` tokens before it; 1 or more.

    Returns:
        Of each query, zeros where it sees no key; what belongs to no row means nothing,
        and may be NaN.

    Raises:
        ValueError: shapes or dtypes do not fit together, there are no pages, or a
            number is not finite; or `soft_cap` is not above 0; or `window` is no whole
            number, 1 or more.
        TypeError: an argument is of another type, or what is static is traced.
    """
    spec = _checked("attention", slopes, sinks, scale, soft_cap, window)
    q, pages = _fits("attention", q, kv, pages, spec)
    if not (len(q) and pages.num_rows):
        return jnp.zeros_like(q)
    decodes = pages.decodes or pages.by_slot
    call, run = PagedAttention(q, kv, pages, spec), _ragged
    if decodes and pages.firsts is None and q.shape[0] == pages.num_rows:
        pages, run = _within_tables(call), _decoding
    cap, window = spec.soft_cap, spec.window
    out = run(q, kv, pages, slopes, sinks, scale=scale, soft_cap=cap, window=window)
    shares = run is _decoding and pages.prefixes is not None
    return _of_whole_rows(out, call) if shares else out


@calls.named
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
    """Attends from new tokens of each row to tokens of the row, or to a part of them.

    The queries are those of `PageView`: one a row that decodes, some of a row whose
    drafts are verified, any number of a chunk of a prompt. What they find is a state
    (FlashInfer, section 2.2), and `merge_states` joins those of several parts: of a
    prefix that rows share and of their own tokens, say.

    Args:
        q: queries of the new tokens; where each row's are, `pages` says.
        kv: a layer of a cache; the new tokens are in it already.
        pages: the rows: their pages, lengths in tokens, and new tokens. Tokens that a
            row's table has no room for are not there: as keys nobody sees them, and
            their queries find nothing.
        slopes: ALiBi slope of each query head, or `None`.
        sinks: as in `attention`. Give them to one of the parts alone.
        scale: factor of the dot products. Static, as the next two: under `jax.jit`
            numbers, or named in its `static_argnames`.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`; above 0.
        window: a query sees itself and the `window - 1` tokens before it; 1 or more.
        tree: which new tokens of its row each query sees, as bits: bit `i % 32` of word
            `i // 32` stands for new token `i`. Those without a bit are seen as if they
            had one that is set. `None` sets all of them. With a tree, windows and ALiBi
            count by position in the sequence: ancestors, not slots.
        keys: the part of each row's keys that is attended to; `None`: all of them.

    Returns:
        What each query has found; what belongs to no row has found nothing, or a sink.

    Raises:
        ValueError: shapes or dtypes do not fit together, there are no pages, or a
            number is not finite; or `soft_cap` is not above 0; or `window` is no whole
            number, 1 or more.
        TypeError: an argument is of another type, or what is static is traced.
        Unsupported: inside `batch_invariant()` off a GPU: the definition's sums depend
            on how many queries there are.
    """
    name = "attention_states"
    spec = _checked(name, slopes, sinks, scale, soft_cap, window)
    q, pages = _fits(name, q, kv, pages, spec)
    if tree is not None:
        words = calls.array_of(name, "tree", tree, "T", "N")
        calls.check_words(name, "tree", tree)
        tree = words.astype(jnp.uint32)
    if keys is not None:
        calls.check_range(name, keys)
        ends = keys._asdict().items()
        keys = KeyRange(*(calls.integers_of(name, f"keys.{e}", n) for e, n in ends))
    if not (len(q) and pages.num_rows):
        empty = jnp.zeros_like(q, jnp.float32)
        return AttentionState(empty, jnp.full(q.shape[:2], -jnp.inf))
    return _states(
        q,
        kv,
        pages,
        slopes,
        sinks,
        scale=scale,
        soft_cap=soft_cap,
        window=spec.window,
        tree=tree,
        keys=keys,
    )


@calls.named
def merge_states(states: Sequence[AttentionState]) -> AttentionState:
    """What queries have found among the keys of all states (FlashInfer, section 2.2).

    It does not matter how keys are shared out among states, as long as each key is
    in one of them; nor does the order, up to rounding. Sinks belong in one state
    alone, or they count as often as there are states.

    Args:
        states: of the same queries, one or more: of each its `output`, `[..., Hq, D]`,
            and the `log_sum` of it, `[..., Hq]`. Axes in place of the dots are `[T]`,
            as `attention_states` has them, or any others.

    Returns:
        A state of the same shapes.

    Raises:
        ValueError: there are none, they are not of the same shapes, or not floating.
        TypeError: they are no sequence of states, or a state is not of arrays.
    """
    _check_states(states)
    return _merge(states)


def _check_states(states: Any) -> None:
    name = "merge_states"
    if not isinstance(states, Sequence):
        raise TypeError(
            f"{name}: states is {calls.kind(states)}; give a list of AttentionState"
        )
    for state in states:
        if not isinstance(state, AttentionState):
            raise TypeError(
                f"{name}: one of states is {calls.kind(state)}; give AttentionState"
            )
        for part in ("output", "log_sum"):
            what = f"{part} of one of states"
            array = calls.array_of(name, what, getattr(state, part))
            calls.check_kind(name, jnp.floating, **{what: array})


def _checked(
    operation: str,
    slopes: Any,
    sinks: Any,
    scale: Any,
    soft_cap: Any,
    window: Any,
) -> ScoreSpec:
    calls.check_number(operation, "scale", scale)
    if soft_cap is not None:
        calls.check_type_of_number(operation, "soft_cap", soft_cap)
    window = calls.window_of(operation, "window", window)
    for name, array in (("slopes", slopes), ("sinks", sinks)):
        if array is not None:
            given = calls.array_of(operation, name, array, "Hq")
            calls.check_real(operation, **{name: given})
    return ScoreSpec(slopes, scale, soft_cap, window, sinks)


def _fits(
    operation: str, q: Any, kv: KVLayer, pages: PageView, spec: ScoreSpec
) -> tuple[Array, PageView]:
    """The queries, as an array of JAX, and the rows, in int32."""
    q = calls.array_of(operation, "q", q, "T", "Hq", "D")
    calls.check_kind(operation, jnp.floating, q=q)
    calls.check_layer(operation, kv)
    pages = calls.rows_of(operation, pages)
    if not (len(q) and pages.num_rows):  # else who serves the call looks at it
        takes_slots = pages.by_slot and operation == "attention"
        call = PagedAttention(q, kv, pages, spec)
        check_attention(operation, call, takes_slots=takes_slots)
    return q, pages


def _output_of[**P](attend: Callable[P, tuple[Array, Any]]) -> Callable[P, Array]:
    """The same without what it counts: that has no derivative."""

    @functools.wraps(attend)
    def output(*args: P.args, **kwargs: P.kwargs) -> Array:
        return attend(*args, **kwargs)[0]

    return output


def _within_tables(call: PagedAttention) -> PageView:
    """Rows whose last token their tables have no room for have none.

    Kernels for decoding would take the last one that there is room for in its place.
    What rows share points into the batch then, whoever has made it.
    """
    pages, prefixes = call.pages, call.pages.prefixes
    if prefixes is not None:
        prefixes = prefixes.within(call.max_tokens, TILE_ROWS // call.group)
    # By lax: jnp.where takes twice as long to trace, in each layer of a model.
    stands = lax.convert_element_type(_have_room(call), jnp.int32)
    lengths = lax.mul(pages.lengths, stands)
    return dataclasses.replace(pages, lengths=lengths, prefixes=prefixes)


def _have_room(call: PagedAttention) -> Bool[Array, " B"]:
    """Rows whose tables have room for all of their tokens."""
    return lax.le(call.pages.lengths, np.int32(min(call.max_tokens, HIGHEST)))


def _of_whole_rows(out: Float[Array, "B Hq D"], call: PagedAttention) -> Array:
    """Zeros for the rows without room, which find what they share with others."""
    return jnp.where(_have_room(call)[:, None, None], out, 0)


_states = differentiable(states.OP, states.attention_states)
_decoding = differentiable(DECODE, _output_of(decode_attention))
_ragged = differentiable(PREFILL, _output_of(prefill_attention))
