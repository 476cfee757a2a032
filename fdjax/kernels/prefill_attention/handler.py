"""`prefill_attention` by the extension's handlers: C++ on a CPU, CUDA on a GPU."""

import dataclasses
from typing import TypedDict

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.chip import chip
from fdjax.kernels.decode_attention.unified import SchemeAttributes, UnifiedMax
from fdjax.kernels.limits import ANY, Limits, refuse_sizes
from fdjax.kernels.op import Impl, is_batch_invariant
from fdjax.kernels.paged import (
    AttentionAttributes,
    attention_attributes,
    by_head,
    handlers_array,
    handlers_window,
)
from fdjax.kernels.prefill_attention.arguments import Attended, PrefillAttention
from fdjax.kernels.prefill_plan import cuda as cuda_plan
from fdjax.kernels.prefill_plan.tiles import (
    TILE_ROWS,
    Room,
    most_tiles,
    room_of,
    work_of,
)
from fdjax.notation import Array, Int32

NAME = "prefill_attention"
HEAD_MULTIPLE = ffi.limit(NAME, "head_multiple")
CPU_LIMITS = Limits(
    dtypes=(jnp.float32, jnp.bfloat16, jnp.float16),
    head_dims=range(1, ffi.limit("decode_attention", "max_host_head_dim") + 1),
    widths=ANY,
)
CUDA_LIMITS = Limits(
    dtypes=(jnp.bfloat16, jnp.float16),
    head_dims=range(HEAD_MULTIPLE, ffi.limit(NAME, "max_head_dim") + 1, HEAD_MULTIPLE),
    page_sizes=range(1, ffi.limit(NAME, "max_page_size") + 1),
    groups=range(1, TILE_ROWS + 1),
    widths=range(HEAD_MULTIPLE, 2**16, HEAD_MULTIPLE),
)


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler.

    Attributes:
        attention: every attention's.
        scheme: of the softmax.
    """

    attention: AttentionAttributes
    scheme: SchemeAttributes


def run_on_cpu(call: PrefillAttention) -> Attended:
    """See `fdjax.kernels.prefill_attention.prefill_attention`.

    A tile is one query, and no keys are cut: its handler attends to each by itself.
    """
    rows, positions = call.queries()
    place, ones = jnp.arange(len(rows), dtype=jnp.int32), jnp.ones_like(rows)
    tokens = (positions >= 0).astype(jnp.int32)
    ends = positions + 1
    tile = (rows, place, positions, tokens, 0 * ones, ends, -ones, ones)
    return _run(call, Room(blocks=1, records=0), jnp.stack(tile, axis=-1))


def run_on_gpu(call: PrefillAttention) -> Attended:
    """See `fdjax.kernels.prefill_attention.prefill_attention`."""
    return _run(call, room_on_gpu(call), work_on_gpu(call))


def room_on_gpu(call: PrefillAttention) -> Room:
    """What the blocks of a GPU have room for.

    Inside `op.batch_invariant()` no keys are cut: into how many pieces would depend on
    all rows of the call. A tile of queries is of one row in any case.
    """
    num_kv_heads = call.kv.cache.num_kv_heads
    if is_batch_invariant():
        return Room(chip().num_sms / num_kv_heads, records=0)
    return room_of(_most_tiles(call), num_kv_heads, chip().num_sms)


def records_of(call: PrefillAttention, room: Room) -> jax.ShapeDtypeStruct:
    """What the pieces of tiles leave."""
    heads, head_dim = call.kv.cache.num_kv_heads, call.q.shape[2]
    shape = (room.records, heads, TILE_ROWS, head_dim + 2)
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def work_on_gpu(call: PrefillAttention) -> Int32[Array, "M 8"]:
    """What the blocks of a GPU do for the call's rows, listed on the device."""
    room = room_on_gpu(call)
    listed = cuda_plan.serves(call.pages.num_rows, _most_tiles(call), room)
    return (cuda_plan.work_of if listed else work_of)(**_rows(call, room))


class _Rows(TypedDict):
    """What the work of a call follows from: the arguments of `work_of`."""

    lengths: Int32[Array, " B"]
    starts: Int32[Array, " B"]
    firsts: Int32[Array, " B"]
    window: int
    num_queries: int
    max_tokens: int
    tile_tokens: int
    room: Room


def _rows(call: PrefillAttention, room: Room) -> _Rows:
    pages, num_queries = call.pages, call.q.shape[0]
    return {
        "lengths": pages.lengths,
        "starts": pages.first_positions,
        "firsts": pages.first_tokens(num_queries),
        "window": handlers_window(call.scores),
        "num_queries": num_queries,
        "max_tokens": call.max_tokens,
        "tile_tokens": _tile_tokens(call),
        "room": room,
    }


def _most_tiles(call: PrefillAttention) -> int:
    return most_tiles(call.q.shape[0], call.pages.num_rows, _tile_tokens(call))


def _tile_tokens(call: PrefillAttention) -> int:
    return max(TILE_ROWS // call.group, 1)


def recomputed_of(call: PrefillAttention) -> tuple[int, ...]:
    """The shape of a layer's counts; nothing is counted without a unified maximum."""
    return (0,) if call.unified is None else (call.pages.num_rows,)


def _run(call: PrefillAttention, room: Room, work: Int32[Array, "M 8"]) -> Attended:
    scores, pages = call.scores, call.pages
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(call.q.shape, call.q.dtype),
            records_of(call, room),
            jax.ShapeDtypeStruct(recomputed_of(call), jnp.int32),
        ),
        vmap_method="sequential",
    )
    out, _, recomputed = handler(
        call.q,
        handlers_array(call.kv.cache),
        pages.page_table,
        pages.lengths,
        work,
        by_head(scores.slopes),
        by_head(scores.sinks),
        attributes=ffi.attributes(
            Attributes(attention_attributes(call), UnifiedMax.attributes(call.unified))
        ),
    )
    if call.unified is None:
        recomputed = jnp.zeros(pages.num_rows, jnp.int32)
    return out, recomputed


def refuse_arguments(call: PrefillAttention, limits: Limits) -> str | None:
    """Why a handler with these limits does not take the arrays, or `None`."""
    return limits.refuse(call) or refuse_sizes(call)


def _refuse_on_cpu(call: PrefillAttention) -> str | None:
    return ffi.refuse(NAME, platform="cpu") or refuse_arguments(call, CPU_LIMITS)


def _refuse_on_gpu(call: PrefillAttention) -> str | None:
    if call.scores.scale <= 0:
        return f"scale is {call.scores.scale}; it takes one above 0"
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(call, CUDA_LIMITS)


CPU = Impl(run_on_cpu, _refuse_on_cpu, batch_invariant=True)
CUDA = Impl(run_on_gpu, _refuse_on_gpu, batch_invariant=True)
