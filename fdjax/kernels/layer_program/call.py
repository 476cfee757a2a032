"""The FFI call that launches a step's kernels one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import config as decode_config
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.layer_program.launches import Launch, encode
from fdjax.kernels.paged import KVCache
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.notation import Array, Float, Int32

NAME = "layer_program"


@dataclass(frozen=True)
class Tokens:
    """What a call knows of its tokens.

    Attributes:
        x: the residual stream at first.
        positions: of each.
        slots: where its key and value go.
        wanted: those whose hidden states are the result; none stand for all.
        places: where the token of each row is that decodes, if others have many.
        frequencies: of RoPE; none without it.
        angles: cosines and sines of rows that decode, where attention rotates.
        slopes: ALiBi's; none without it.
    """

    x: Float[Array, "T E"]
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    wanted: Int32[Array, " U"]
    places: Int32[Array, " B"]
    frequencies: Float[Array, " R2"]
    angles: Float[Array, "2 B R2"]
    slopes: Float[Array, " Hq"]


@dataclass(frozen=True)
class Memory:
    """Columns of the three buffers, and elements of scratch memory."""

    widths: tuple[int, int, int]
    scratch: int


class _Decoding(NamedTuple):
    """Operands, results and attributes for rows that decode."""

    page_table: Array
    lengths: Array
    plans: Array
    recomputed: jax.ShapeDtypeStruct
    records: jax.ShapeDtypeStruct
    attributes: dict[str, np.int64]


class _Prompts(NamedTuple):
    """Operands and results for rows with any number of tokens."""

    page_table: Array
    lengths: Array
    tiles: Array
    records: jax.ShapeDtypeStruct


def run(
    launches: Sequence[Launch],
    memory: Memory,
    tokens: Tokens,
    kv: KVCache,
    weights: Sequence[Array],
    decoding: Sequence[DecodeAttention],
    prompts: Sequence[PrefillAttention],
    *,
    num_heads: int,
    interleaved: bool,
) -> tuple[Float[Array, "U E"], KVCache, Int32[Array, "L B"]]:
    """Runs a step.

    Args:
        launches: what is done, in order.
        memory: what it needs.
        tokens: of the call; `x` is overwritten where nobody else reads it.
        kv: keys and values; donate them, and they are updated in place.
        weights: in the order that operands count them in.
        decoding: attention of rows with one token, for each window; none: no such rows.
        prompts: attention of rows with any number, likewise.
        num_heads: `Hq`.
        interleaved: RoPE's pairing.

    Returns:
        The region `HIDDEN`, the cache, and how many query heads of each row that
        decodes every layer computed again.
    """
    x, some = tokens.x, _decoding(decoding, kv)
    others = _prompts(prompts, kv)

    def buffer(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, x.dtype)

    first, second, third = (buffer(x.shape[0], width) for width in memory.widths)
    chain = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            first,
            jax.ShapeDtypeStruct(kv.array.shape, kv.dtype),
            second,
            third,
            buffer(tokens.wanted.shape[0] or x.shape[0], x.shape[1]),
            buffer(memory.scratch),
            some.recomputed,
            some.records,
            others.records,
        ),
        input_output_aliases={0: 0, 1: 1},
    )
    _, written, _, _, hidden, _, recomputed, _, _ = chain(
        x,
        kv.array,
        tokens.positions,
        tokens.slots,
        tokens.wanted,
        tokens.places,
        tokens.frequencies,
        tokens.angles,
        tokens.slopes,
        some.page_table,
        some.lengths,
        some.plans,
        others.page_table,
        others.lengths,
        others.tiles,
        *weights,
        program=encode(launches),
        q_heads=np.int64(num_heads),
        interleaved=np.bool_(interleaved),
        **some.attributes,
    )
    return hidden, kv.with_array(written), jnp.sum(recomputed, axis=-1)


def angles(
    positions: Int32[Array, " B"], frequencies: Float[Array, " R2"]
) -> Float[Array, "2 B R2"]:
    """Cosines and sines of RoPE, which all layers share."""
    turns = positions[:, None].astype(jnp.float32) * frequencies
    return jnp.stack([jnp.cos(turns), jnp.sin(turns)])


def _decoding(calls: Sequence[DecodeAttention], kv: KVCache) -> _Decoding:
    if not calls:
        config = decode_config.LaunchConfig(splits=0, heads=1, warps=0, slots=0)
        shape = config.plan_shape(0, kv.num_kv_heads)
        page_table, lengths = _no_rows()
        plans, floats = jnp.zeros((1, 0), jnp.int32), 0
    else:
        first = calls[0]
        config = decode_config.heuristic(decode_cuda.config_call(first))
        shape = config.plan_shape(first.pages.num_rows, kv.num_kv_heads)
        page_table, lengths = first.pages.page_table, first.pages.lengths
        plans = jnp.stack([decode_cuda.plan_for(call, shape) for call in calls])
        floats = shape.record_floats(first.group, kv.head_dim)
    counts = (kv.num_layers, page_table.shape[0], kv.num_kv_heads)
    return _Decoding(
        page_table,
        lengths,
        plans,
        jax.ShapeDtypeStruct(counts, jnp.int32),
        jax.ShapeDtypeStruct((floats,), jnp.float32),
        config.attributes(shape),
    )


def _prompts(calls: Sequence[PrefillAttention], kv: KVCache) -> _Prompts:
    if not calls:
        tiles = jnp.zeros((1, 0, 8), jnp.int32)
        none = jax.ShapeDtypeStruct((0, kv.num_kv_heads, 0, 0), jnp.float32)
        return _Prompts(*_no_rows(), tiles, none)
    first = calls[0]
    room = prefill_handler.room_on_gpu(first)
    return _Prompts(
        first.pages.page_table,
        first.pages.lengths,
        jnp.stack([prefill_handler.work_for(call, room) for call in calls]),
        prefill_handler.records_of(first, room),
    )


def _no_rows() -> tuple[Array, Array]:
    """Their page table and their lengths."""
    return jnp.zeros((0, 1), jnp.int32), jnp.zeros(0, jnp.int32)
