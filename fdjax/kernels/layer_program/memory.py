"""What a step's kernels need besides its operands and results, and where it lies."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import config as decode_config
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill_handler
from fdjax.kernels.prefill_plan.tiles import TILE_ROWS

ALIGNMENT = ffi.limit("layer_program", "alignment")
"""Of a block, in bytes."""


@dataclass(frozen=True)
class Memory:
    """What the launches of a step need.

    Attributes:
        widths: columns of the three buffers of activations.
        scratch: elements that one instruction's launches have to themselves.
    """

    widths: tuple[int, int, int]
    scratch: int


class Blocks(NamedTuple):
    """Bytes of what a step alone needs, besides its results.

    Attributes:
        first: the first buffer of activations: the residual stream.
        second: the second, as wide.
        third: the third, as wide as the widest value beside them.
        scratch: see `Memory`.
        decode_records: what pieces of rows that decode leave, to be merged.
        prefill_records: what pieces of prompts leave.
        about: what the weights of rows that share prefixes are relative to, and sums.
        shared_records: what pieces of prefixes that rows share leave.
    """

    first: int
    second: int
    third: int
    scratch: int
    decode_records: int
    prefill_records: int
    about: int
    shared_records: int

    @property
    def places(self) -> tuple[int, ...]:
        """Where each begins if they lie one after the other; and where all end."""
        sizes = (-(-size // ALIGNMENT) * ALIGNMENT for size in self)
        return tuple(itertools.accumulate(sizes, initial=0))

    @property
    def total(self) -> int:
        """Bytes from the beginning to the end of all."""
        return self.places[-1]


def blocks_of(
    memory: Memory,
    kv: KVCache,
    num_tokens: int,
    decoding: Sequence[DecodeAttention],
    prompts: Sequence[PrefillAttention],
    prefixes: SharedPrefixes | None,
) -> Blocks:
    """What a step of so many tokens needs; the arguments are those of a call."""
    itemsize = kv.dtype.itemsize
    first, second, third = (num_tokens * width for width in memory.widths)
    records = prompts_records = about = shared_records = 0
    if decoding:
        one = decoding[0]
        shares = prefixes is not None
        config = decode_config.heuristic(decode_cuda.sizes_of(one, shares=shares))
        shape = config.plan_shape(one.pages.num_rows, kv.num_kv_heads)
        records = shape.record_floats(one.group, kv.head_dim)
    if prompts:
        room = prefill_handler.room_on_gpu(prompts[0])
        prompts_records = prefill_handler.records_of(prompts[0], room).size
    if prefixes is not None:
        queries = decoding[0].q.shape
        about = queries[0] * queries[1] * 2
        piece = kv.num_kv_heads * TILE_ROWS * (kv.head_dim + 2)
        shared_records = prefixes.num_records * piece
    elements = (first, second, third, memory.scratch)
    floats = (records, prompts_records, about, shared_records)
    return Blocks(*(size * itemsize for size in elements), *(4 * n for n in floats))


def places_in(kv: KVCache, blocks: Blocks) -> tuple[int, ...]:
    """Where blocks lie at the array's end: its first byte and its bytes, of each.

    Raises:
        ValueError: the array is smaller than they are together.
    """
    whole = kv.array.size * kv.dtype.itemsize
    begin = (whole - blocks.total) // ALIGNMENT * ALIGNMENT
    if begin < 0:
        raise ValueError(
            f"layer_program: a step needs {blocks.total} bytes at the end of the KV "
            f"array, which has {whole}; give it fewer tokens, or a larger array"
        )
    return tuple(
        number
        for place, size in zip(blocks.places[:-1], blocks, strict=True)
        for number in (begin + place, size)
    )
