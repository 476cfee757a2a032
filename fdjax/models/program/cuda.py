"""`layer_program` as one chain of CUDA kernels, called through XLA's FFI."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.add_norm.cuda import MAX_ROW_BYTES
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import PageView, ScoreSpec, by_head
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.kernels.weight import Dense
from fdjax.models.program import instructions as do
from fdjax.models.program.arguments import LayerProgram, Ran
from fdjax.models.program.lower import Lowering, Rows, windows_of
from fdjax.notation import Array


def run(call: LayerProgram) -> Ran:
    """See `LayerProgram`; `kv` is updated in place."""
    program, batch = call.program, call.batch
    some, others = _decoding(call), _prompts(call)
    windows = windows_of(program)
    launches, memory = _lowered(call, windows)
    one = _attention(program)
    hidden, kv, recomputed = layer_program.run(
        launches,
        memory,
        _tokens(call, one, some, among=others is not None),
        call.kv,
        [_values(each) for each in call.parameters],
        [] if some is None else [_decode_call(call, one, some, w) for w in windows],
        []
        if others is None
        else [_prefill_call(call, one, others, w) for w in windows],
        num_heads=one.num_heads,
        interleaved=one.interleaved,
    )
    if some is None:
        recomputed = jnp.zeros((call.kv.num_layers, batch.pages.num_rows), jnp.int32)
    return hidden, kv, recomputed


def activation_bytes(call: LayerProgram) -> int:
    """What a call holds beside weights, KV array and results.

    The three buffers, the first of which is `x`; and what launches need besides.
    """
    _, memory = _lowered(call, windows_of(call.program))
    elements = call.x.shape[0] * sum(memory.widths) + memory.scratch
    total = elements * call.x.dtype.itemsize
    if (pages := _prompts(call)) is not None:
        one = _prefill_call(call, _attention(call.program), pages, None)
        records = prefill_handler.records_of(one, prefill_handler.room_on_gpu(one))
        total += records.size * records.dtype.itemsize
    return total


def _lowered(
    call: LayerProgram, windows: tuple[int, ...]
) -> tuple[tuple[Launch, ...], layer_program.Memory]:
    """The launches, and what they need."""
    shapes = (each.shape for each in call.parameters)
    lowering = Lowering(
        call.program,
        _rows(call),
        dict(zip(call.program.layer_parameters, shapes, strict=True)),
        windows,
    )
    return lowering.launches(), lowering.memory


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
    if batch.beams is not None:
        return "rows are beams"
    if batch.pages.prefixes is not None:
        return "rows share prefixes"
    if call.kv.dtype != call.x.dtype:
        return f"the KV array is {call.kv.dtype}, and x {call.x.dtype}"
    tokens, wanted = call.x.shape[0], batch.wanted
    if wanted is not None and not 0 < wanted.shape[0] <= tokens:
        return f"{wanted.shape[0]} of {tokens} tokens are wanted"
    return _refuse_attention(call) or _refuse_parameters(call) or _refuse_rows(call)


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
    x = call.x
    if (row_bytes := x.shape[1] * x.dtype.itemsize) > MAX_ROW_BYTES or row_bytes % 16:
        return (
            f"a row is {row_bytes} bytes; add_norm takes multiples of 16 up to "
            f"{MAX_ROW_BYTES}"
        )
    for path, each in zip(call.program.layer_parameters, call.parameters, strict=True):
        if each.dtype != x.dtype:
            return f"{path} is {each.dtype}, and x {x.dtype}"
        if isinstance(each, Dense):
            n, k = each.shape
            if n % 16 or k % 8:
                return f"a weight is [{n}, {k}]; it takes multiples of 16 and 8"
    return None


def _refuse_rows(call: LayerProgram) -> str | None:
    """Why the kernels of attention do not take the call's rows, or `None`."""
    one = _attention(call.program)
    some, others = _decoding(call), _prompts(call)
    if some is not None:
        decode = _decode_call(call, one, some, None)
        if reason := decode_cuda.refuse_arguments(decode):
            return reason
    if others is not None:
        if one.scale <= 0:
            return f"scale is {one.scale}; it takes one above 0"
        prefill = _prefill_call(call, one, others, None)
        return prefill_handler.refuse_arguments(prefill, prefill_handler.CUDA_LIMITS)
    return None


def _rows(call: LayerProgram) -> Rows:
    tokens, wanted = call.x.shape[0], call.batch.wanted
    some, others = _decoding(call), _prompts(call)
    return Rows(
        tokens=tokens,
        wanted=tokens if wanted is None else wanted.shape[0],
        decoding=0 if some is None else some.num_rows,
        prompts=others is not None,
    )


def _decoding(call: LayerProgram) -> PageView | None:
    """The rows with one token each, if attention is told of them."""
    batch = call.batch
    if batch.mixed is not None:
        return batch.mixed.decoding
    return batch.pages if batch.phase == "decode" else None


def _prompts(call: LayerProgram) -> PageView | None:
    """The rows with any number of tokens."""
    batch = call.batch
    if batch.mixed is not None:
        return batch.mixed.prompts
    return None if batch.phase == "decode" else batch.pages


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
    return PrefillAttention(**_operands(call, one, pages, call.x.shape[0], window))


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
        "q": jax.ShapeDtypeStruct(shape, call.x.dtype),
        "kv": call.kv.layer(0),
        "pages": pages,
        "scores": ScoreSpec(None, one.scale, one.soft_cap, window),
    }


def _tokens(
    call: LayerProgram, one: do.Attention, some: PageView | None, *, among: bool
) -> layer_program.Tokens:
    """What the call is told of its tokens.

    Args:
        call: whose tokens.
        one: attention of any layer.
        some: the rows that decode.
        among: whether their tokens are among those of other rows.
    """
    batch, none = call.batch, jnp.zeros(0, jnp.int32)
    frequencies = jnp.asarray(one.frequencies, jnp.float32)
    turns = jnp.zeros((0, 0, 0), jnp.float32)
    if some is not None and not among:
        turns = layer_program.angles(batch.positions, frequencies)
    places = (
        batch.mixed.places if batch.mixed is not None and some is not None else none
    )
    return layer_program.Tokens(
        x=call.x,
        positions=batch.positions,
        slots=batch.slots,
        wanted=none if batch.wanted is None else batch.wanted,
        places=places,
        frequencies=frequencies,
        angles=turns,
        slopes=by_head(jnp.asarray(one.slopes) if one.slopes else None),
    )


def _values(parameter: Any) -> Array:
    return parameter.values if isinstance(parameter, Dense) else parameter


IMPL = Impl(run, refuse)
