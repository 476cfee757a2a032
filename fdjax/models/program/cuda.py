"""`layer_program` as one chain of CUDA kernels, called through XLA's FFI."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.add_norm.cuda import MAX_ROW_BYTES, UNIT_BYTES
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program.memory import ALIGNMENT, Memory, blocks_of
from fdjax.kernels.matmul.params import GATED_UNIT, UNIT, MatmulConfig
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import PageView, ScoreSpec, by_head
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.kernels.weight import Weight
from fdjax.layers import Batch
from fdjax.models.program import instructions as do
from fdjax.models.program.arguments import LayerProgram, Ran
from fdjax.models.program.gemms import Gemms
from fdjax.models.program.kept import check_kept
from fdjax.models.program.lower import Lowering, turns_in_attention, windows_of
from fdjax.models.program.views import (
    RowCounts,
    Views,
    refuse_views,
    view_shapes,
    views_of,
)
from fdjax.notation import Array, Int32


def run(call: LayerProgram) -> Ran:
    """See `LayerProgram`; `kv` is updated in place."""
    batch, one, views = call.batch, _attention(call.program), views_of(call)
    calls = _calls(call, views)
    lowering = _lowering(call, views)
    if call.kv.lent:
        num_bytes = _bytes_of(call, lowering.memory, calls, views)
        check_kept(num_bytes, num_tokens=call.num_tokens)
    hidden, kv, recomputed = layer_program.run(
        lowering.launches(),
        lowering.memory,
        _tokens(call, one, views),
        call.kv,
        jax.tree.leaves(call.parameters),
        *calls,
        views.shared,
        num_heads=one.num_heads,
        hidden_size=call.program.hidden_size,
        interleaved=one.interleaved,
    )
    return hidden, kv, _by_row(batch, recomputed, calls)


def activation_bytes(call: LayerProgram) -> int:
    """What a call needs beside weights and results, in the KV array or beside it."""
    views = view_shapes(call)
    memory = _lowering(call, views).memory
    return _bytes_of(call, memory, _calls(call, views), views)


def _bytes_of(call: LayerProgram, memory: Memory, calls: "_Calls", views: Views) -> int:
    """Of the array's end at most, however many pages it has.

    Blocks end at a multiple of `ALIGNMENT`. So need not the array: one of an odd number
    of pages that are odd multiples of half of it ends by half of it later.
    """
    prefixes = None if views.shared is None else views.shared.prefixes
    kv = call.kv
    blocks = blocks_of(memory, kv, call.num_tokens, *calls, prefixes)
    page_bytes = kv.layout.page_stride * kv.dtype.itemsize
    return blocks.total + ALIGNMENT - math.gcd(page_bytes, ALIGNMENT)


class _Calls(NamedTuple):
    """Of attention, one for each window; none where there are no such rows.

    Attributes:
        decoding: of rows with one token each.
        prompts: of rows with any number of tokens.
    """

    decoding: list[DecodeAttention]
    prompts: list[PrefillAttention]


def _calls(call: LayerProgram, views: Views) -> _Calls:
    one, windows = _attention(call.program), windows_of(call.program)
    some, others, _ = views
    return _Calls(
        [] if some is None else [_decode_call(call, one, some, w) for w in windows],
        []
        if others is None
        else [_prefill_call(call, one, others, w) for w in windows],
    )


def _by_row(
    batch: Batch, recomputed: layer_program.Recomputed, calls: _Calls
) -> Int32[Array, "L B"]:
    """What layers computed again of each row of the batch."""
    decoded, extended = recomputed
    if not calls.decoding:
        decoded = jnp.zeros((decoded.shape[0], batch.pages.num_rows), jnp.int32)
    if not extended.size:
        return decoded
    if batch.mixed is None:
        return extended
    return batch.mixed.by_row(decoded, extended)


def _lowering(call: LayerProgram, views: Views) -> Lowering:
    windows = windows_of(call.program)
    return Lowering(call.program, _rows(call, views), _by_path(call), windows)


def _by_path(call: LayerProgram) -> dict[str, Array | Weight]:
    return dict(zip(call.program.body_parameters, call.parameters, strict=True))


def gemm_configs(call: LayerProgram) -> tuple[MatmulConfig, ...]:
    """What computes each linear map of the program, in their order.

    The call's arrays may be stand-ins.
    """
    gemms = Gemms(_rows(call, view_shapes(call)), _by_path(call))
    linear = (one for one in call.program.instructions if isinstance(one, do.Linear))
    return tuple(map(gemms.config, linear))


def refuse(call: LayerProgram) -> str | None:
    """Why the chain cannot serve this call, or `None`."""
    return (
        ffi.refuse(layer_program.NAME, platform="gpu")
        or ffi.refuse_below_sm90()
        or refuse_arguments(call)
    )


def refuse_arguments(call: LayerProgram) -> str | None:
    """Why the chain takes none of these arrays on any GPU, or `None`."""
    batch = call.batch
    if call.kv.dtype != call.dtype:
        return f"the KV array is {call.kv.dtype}, and the embedding {call.dtype}"
    tokens, wanted = call.num_tokens, batch.wanted
    if wanted is not None and not 0 < wanted.shape[0] <= tokens:
        return f"{wanted.shape[0]} of {tokens} tokens are wanted"
    return (
        _refuse_attention(call)
        or _refuse_parameters(call)
        or refuse_views(call)
        or _refuse_rows(call)
    )


def _refuse_attention(call: LayerProgram) -> str | None:
    """What may differ from layer to layer is the window."""
    first = _attention(call.program)
    for one in call.program.instructions:
        if not isinstance(one, do.Attention):
            continue
        same = {
            field.name: getattr(first, field.name)
            for field in dataclasses.fields(first)
            if field.name not in ("layer", "window", "reads", "writes")
        }
        for name, value in same.items():
            if getattr(one, name) != value:
                return f"layer {one.layer} differs from the first in its {name}"
    return None


def _refuse_parameters(call: LayerProgram) -> str | None:
    row_bytes = call.program.hidden_size * call.dtype.itemsize
    if row_bytes > MAX_ROW_BYTES or row_bytes % UNIT_BYTES:
        return (
            f"a row is {row_bytes} bytes; add_norm takes multiples of {UNIT_BYTES} "
            f"up to {MAX_ROW_BYTES}"
        )
    for path, each in zip(call.program.body_parameters, call.parameters, strict=True):
        if each.dtype != call.dtype:
            return f"{path} is {each.dtype}, and the embedding {call.dtype}"
        if 0 in each.shape:
            return f"{path} is {each.shape}"
    for n, k in call.linear_shapes:
        if n % GATED_UNIT or k % UNIT:
            return (
                f"a weight is [{n}, {k}]; it takes multiples of {GATED_UNIT} and {UNIT}"
            )
    return None


def _refuse_rows(call: LayerProgram) -> str | None:
    """Why the kernels of attention do not take the call's rows, or `None`."""
    one = _attention(call.program)
    views = view_shapes(call)
    if (views.shared is not None or views.prompts is not None) and one.scale <= 0:
        return f"scale is {one.scale}; it takes one above 0"
    if views.decoding is not None:
        decode = _decode_call(call, one, views.decoding, None)
        if reason := decode_cuda.refuse_arguments(decode):
            return reason
    if views.prompts is not None:
        prefill = _prefill_call(call, one, views.prompts, None)
        return prefill_handler.refuse_arguments(prefill, prefill_handler.CUDA_LIMITS)
    return None


def _rows(call: LayerProgram, views: Views) -> RowCounts:
    tokens, wanted = call.num_tokens, call.batch.wanted
    some, others, shared = views
    return RowCounts(
        tokens=tokens,
        wanted=tokens if wanted is None else wanted.shape[0],
        decoding=0 if some is None else some.num_rows,
        prompts=others is not None,
        shares=shared is not None,
    )


def _attention(program: do.Program) -> do.Attention:
    """The first layer's."""
    return next(one for one in program.instructions if isinstance(one, do.Attention))


def _decode_call(
    call: LayerProgram, one: do.Attention, pages: PageView, window: int | None
) -> DecodeAttention:
    operands = _operands(call, one, pages, pages.num_rows, window)
    return DecodeAttention(**operands, unified=one.unified)


def _prefill_call(
    call: LayerProgram, one: do.Attention, pages: PageView, window: int | None
) -> PrefillAttention:
    operands = _operands(call, one, pages, call.num_tokens, window)
    return PrefillAttention(**operands, unified=one.unified)


def _operands(
    call: LayerProgram,
    one: do.Attention,
    pages: PageView,
    num_queries: int,
    window: int | None,
) -> dict[str, Any]:
    """The fields of a `PagedAttention`; its queries are not there yet."""
    shape = num_queries, one.num_heads, one.head_dim
    return {
        "q": jax.ShapeDtypeStruct(shape, call.dtype),
        "kv": call.kv.layer(0),
        "pages": pages,
        "scores": ScoreSpec(None, one.scale, one.soft_cap, window),
    }


def _tokens(
    call: LayerProgram, one: do.Attention, views: Views
) -> layer_program.Tokens:
    """What the call is told of its tokens.

    Args:
        call: whose tokens.
        one: attention of any layer.
        views: its rows.
    """
    batch, none = call.batch, jnp.zeros(0, jnp.int32)
    frequencies = jnp.asarray(one.frequencies, jnp.float32)
    turns = jnp.zeros((0, 0, 0), jnp.float32)
    decodes = views.decoding is not None
    alone = views.prompts is None and views.shared is None
    if decodes and alone and turns_in_attention(one):
        turns = layer_program.angles(batch.positions, frequencies)
    places = none if batch.mixed is None or not decodes else batch.mixed.places
    return layer_program.Tokens(
        ids=batch.tokens,
        positions=batch.positions,
        slots=batch.slots,
        wanted=none if batch.wanted is None else batch.wanted,
        places=places,
        frequencies=frequencies,
        angles=turns,
        slopes=by_head(jnp.asarray(one.slopes) if one.slopes else None),
    )


IMPL = Impl(run, refuse, workspace=activation_bytes)
