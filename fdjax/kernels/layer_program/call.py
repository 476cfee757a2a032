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
from fdjax.kernels.layer_program.encoding import encode
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.layer_program.memory import Memory, blocks_of, places_in
from fdjax.kernels.paged import KVCache, SharedPrefixes, handlers_table
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree

NAME = "layer_program"


@dataclass(frozen=True)
class Tokens:
    """What a call knows of its tokens.

    Attributes:
        ids: of each.
        positions: of each.
        slots: where its key and value go.
        wanted: those whose hidden states are the result; none stand for all.
        places: where the token of each row is that decodes, if others have many.
        frequencies: of RoPE; none without it.
        angles: cosines and sines of rows that decode, where attention rotates.
        slopes: ALiBi's; none without it.
    """

    ids: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    wanted: Int32[Array, " U"]
    places: Int32[Array, " B"]
    frequencies: Float[Array, " R2"]
    angles: Float[Array, "2 B R2"]
    slopes: Float[Array, " Hq"]


@pytree
class Shared:
    """What rows with one token share, beside the pages of their own.

    Attributes:
        page_table: of each row, as far as it shares it.
        prefixes: who shares what.
    """

    page_table: Int32[Array, "B W"]
    prefixes: SharedPrefixes


@dataclass(frozen=True)
class Attributes:
    """Those of the handler.

    Attributes:
        q_heads: `Hq`.
        interleaved: RoPE's pairing.
        by_slot: rows with one token have slots in their page table.
        launch: of their attention.
    """

    q_heads: int
    interleaved: bool
    by_slot: bool
    launch: decode_config.LaunchAttributes


class _Decoding(NamedTuple):
    """Operands, a result and the launch config for rows that decode."""

    page_table: Array
    lengths: Array
    plans: Array
    recomputed: jax.ShapeDtypeStruct
    launch: decode_config.LaunchAttributes


class _Prompts(NamedTuple):
    """Operands for rows with any number of tokens, and a result."""

    page_table: Array
    lengths: Array
    tiles: Array
    recomputed: jax.ShapeDtypeStruct


class Recomputed(NamedTuple):
    """How many query heads every layer computed again.

    Attributes:
        decoding: of each row with one token.
        prompts: of all tokens of each row with any number; empty where the softmax is
            synchronised.
    """

    decoding: Int32[Array, "L B"]
    prompts: Int32[Array, "L A"] | Int32[Array, " 0"]


def run(
    launches: Sequence[Launch],
    memory: Memory,
    tokens: Tokens,
    kv: KVCache,
    weights: Sequence[Array],
    decoding: Sequence[DecodeAttention],
    prompts: Sequence[PrefillAttention],
    shared: Shared | None = None,
    *,
    num_heads: int,
    hidden_size: int,
    interleaved: bool,
) -> tuple[Float[Array, "U E"], KVCache, Recomputed]:
    """Runs a step.

    Args:
        launches: what is done, in order.
        memory: what it needs.
        tokens: of the call.
        kv: keys and values; donate them, and they are updated in place. Where they are
            lent, their last pages are what the step needs besides.
        weights: arrays of the parameters, in the order that operands count them in.
        decoding: attention of rows with one token, for each window; none: no such rows.
        prompts: attention of rows with any number, likewise.
        shared: what rows with one token share; their attention is over the rest.
        num_heads: `Hq`.
        hidden_size: `E`.
        interleaved: RoPE's pairing.

    Returns:
        The region `HIDDEN`, the cache, and what was computed again.

    Raises:
        ValueError: what the step needs is more than the whole array that is lent.
    """
    prefixes = None if shared is None else shared.prefixes
    some = _decoding(decoding, kv, shares=prefixes is not None)
    others, count = _prompts(prompts, kv), tokens.ids.shape[0]
    blocks = blocks_of(memory, kv, count, decoding, prompts, prefixes)
    places = places_in(kv, blocks) if kv.lent else ()
    own = [0 if kv.lent else size for size in blocks]
    hidden = tokens.wanted.shape[0] or count, hidden_size
    chain = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(kv.array.shape, kv.dtype),
            jax.ShapeDtypeStruct(hidden, kv.dtype),
            some.recomputed,
            others.recomputed,
            *(jax.ShapeDtypeStruct((size,), jnp.uint8) for size in own),
        ),
        input_output_aliases={0: 0},
    )
    written, last, decoded, extended, *_ = chain(
        kv.array,
        tokens.ids,
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
        *_shared(shared),
        *weights,
        attributes=ffi.attributes(
            Attributes(
                q_heads=num_heads,
                interleaved=interleaved,
                by_slot=bool(decoding) and decoding[0].pages.by_slot,
                launch=some.launch,
            )
        ),
        # JAX takes no arrays within a dictionary.
        program=encode(launches),
        places=np.array(places, np.int64),
    )
    recomputed = Recomputed(jnp.sum(decoded, axis=-1), extended)
    return last, kv.with_array(written), recomputed


def angles(
    positions: Int32[Array, " B"], frequencies: Float[Array, " R2"]
) -> Float[Array, "2 B R2"]:
    """Cosines and sines of RoPE, which all layers share."""
    turns = positions[:, None].astype(jnp.float32) * frequencies
    return jnp.stack([jnp.cos(turns), jnp.sin(turns)])


def _decoding(
    calls: Sequence[DecodeAttention], kv: KVCache, *, shares: bool
) -> _Decoding:
    if not calls:
        config = decode_config.LaunchConfig(splits=0, heads=1, warps=0, slots=0)
        shape = config.plan_shape(0, kv.num_kv_heads)
        page_table, lengths = _no_rows()
        plans = jnp.zeros((1, 0), jnp.int32)
    else:
        first = calls[0]
        config = decode_config.heuristic(decode_cuda.sizes_of(first, shares=shares))
        shape = config.plan_shape(first.pages.num_rows, kv.num_kv_heads)
        page_table, lengths = handlers_table(first), first.pages.lengths
        plans = jnp.stack([decode_cuda.plan_for(call, shape) for call in calls])
    counts = (kv.num_layers, page_table.shape[0], kv.num_kv_heads)
    return _Decoding(
        page_table,
        lengths,
        plans,
        jax.ShapeDtypeStruct(counts, jnp.int32),
        config.attributes(shape),
    )


def _prompts(calls: Sequence[PrefillAttention], kv: KVCache) -> _Prompts:
    if not calls:
        none = jax.ShapeDtypeStruct((0,), jnp.int32)
        return _Prompts(*_no_rows(), jnp.zeros((1, 0, 8), jnp.int32), none)
    first = calls[0]
    counts = () if first.unified is None else (kv.num_layers,)
    return _Prompts(
        first.pages.page_table,
        first.pages.lengths,
        jnp.stack([prefill_handler.work_on_gpu(call) for call in calls]),
        jax.ShapeDtypeStruct(counts + prefill_handler.recomputed_of(first), jnp.int32),
    )


def _shared(shared: Shared | None) -> tuple[Array, Array, Array, Array]:
    """Operands: the page table, and of the prefixes the order, work and parts."""
    if shared is None:
        none = jnp.zeros(0, jnp.int32)
        return (*_no_rows()[:1], none, none.reshape(0, 8), none.reshape(1, 0, 4))
    prefixes = shared.prefixes
    return shared.page_table, prefixes.order, prefixes.work, prefixes.parts


def _no_rows() -> tuple[Array, Array]:
    """Their page table and their lengths."""
    return jnp.zeros((0, 1), jnp.int32), jnp.zeros(0, jnp.int32)
