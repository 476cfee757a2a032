"""Parts of prompts as the operands of one call."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.page_table import page_table
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.memory.kv import KVLayout
from fdjax.notation import Array, Int32


def packed(
    chunks: Sequence[PromptChunk],
    buckets: Buckets,
    layout: KVLayout,
    sizes: tuple[int, ...],
) -> tuple[
    Int32[Array, " T"], Int32[Array, " A"], Int32[Array, "A W"], Int32[Array, " A"]
]:
    """Tokens, lengths, page table and starts, on the device.

    Args:
        chunks: at most as many as a prefill call has rows; the others are empty.
        buckets: shapes.
        layout: of the KV array.
        sizes: numbers of tokens that the call may have; it is padded to one of them.
    """
    num_rows = buckets.prefill_rows
    tokens = np.zeros(smallest_fitting(sizes, sum(c.size for c in chunks)), np.int32)
    starts, lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    place = 0
    for row, chunk in enumerate(chunks):
        tokens[place : place + chunk.size] = chunk.tokens
        starts[row], lengths[row] = chunk.start, chunk.stop
        place += chunk.size
    table = _table([chunk.sequence for chunk in chunks], num_rows, buckets, layout)
    return jax.device_put((tokens, lengths, table, starts))


def scored(
    sequence: EngineSequence,
    start: int,
    stop: int,
    buckets: Buckets,
    layout: KVLayout,
    *,
    size: int,
) -> tuple[Array, ...]:
    """The operands of `score_tokens`, on the device.

    Args:
        sequence: its tokens from `start` to `stop` are read, and what follows each
            scored.
        start: see above.
        stop: see above.
        buckets: shapes.
        layout: of the KV array.
        size: tokens of the call.
    """
    padded = np.zeros((2, size), np.int32)
    padded[0, : stop - start] = sequence.tokens[start:stop]
    padded[1, : stop - start] = sequence.tokens[start + 1 : stop + 1]
    lengths, starts = np.array([[stop], [start]], np.int32)
    table = _table([sequence], 1, buckets, layout)
    return jax.device_put((*padded, lengths, table, starts))


def _table(
    sequences: Sequence[EngineSequence],
    num_rows: int,
    buckets: Buckets,
    layout: KVLayout,
) -> np.ndarray:
    return page_table(
        [sequence.pages for sequence in sequences],
        num_rows=num_rows,
        width=buckets.widths[-1],
        num_pages=layout.num_pages,
    )
