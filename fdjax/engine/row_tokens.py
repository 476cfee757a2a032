"""From sequences to the arrays of a call: whose tokens stand where, in which rows."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.engine.page_table import RowTable
from fdjax.engine.sequence import Chunk, EngineSequence
from fdjax.generate.rows import RowTokens


def rows_of(
    sequences: Sequence[EngineSequence], chunks: Sequence[Chunk], num_rows: int
) -> list[int]:
    """The row of each chunk in a call.

    Beams have none of the batch's: while their prompt is computed, they take one that
    is not in the call.
    """
    taken = {sequence.row for sequence in sequences} | {
        chunk.sequence.row for chunk in chunks
    }
    spare = (row for row in range(num_rows) if row not in taken)
    rows: list[int] = []
    for chunk in chunks:
        row = chunk.sequence.row
        assert row is not None
        rows.append(next(spare) if row >= num_rows else row)
    return rows


def row_tokens(
    sequences: Sequence[EngineSequence],
    chunks: Sequence[Chunk],
    rows: Sequence[int],
    *,
    table: RowTable,
    num_tokens: int,
    num_prompts: int,
) -> RowTokens:
    """The operand of `extend_rows`, on its way to the device.

    Args:
        sequences: that decode.
        chunks: of prompts.
        rows: the row of each chunk.
        table: pages of all rows.
        num_tokens: of the call, padding included.
        num_prompts: chunks that it has room for.
    """
    num_rows, width = table.shape
    starts, lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    prompts, decodes = np.full(num_prompts, num_rows), np.zeros(num_rows, bool)
    prompts[: len(rows)] = sorted(rows)
    new: list[list[int]] = [[] for _ in range(num_rows)]
    pages: dict[int, list[int]] = {}
    for sequence in sequences:
        assert sequence.row is not None
        decodes[sequence.row], new[sequence.row] = True, [0]
        pages[sequence.row] = sequence.pages
    for row, chunk in zip(rows, chunks, strict=True):
        starts[row], lengths[row], new[row] = chunk.start, chunk.stop, chunk.tokens
        pages[row] = chunk.sequence.pages
    table.update(pages)
    tokens = np.zeros(num_tokens, np.int32)
    flat = [token for of_row in new for token in of_row]
    tokens[: len(flat)] = flat
    by_row = starts, lengths, prompts.astype(np.int32), decodes
    part = table.part(num_rows, width)
    return RowTokens(*jax.device_put((tokens, *by_row, part)))
