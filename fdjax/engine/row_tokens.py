"""From sequences to the arrays of a call: whose tokens stand where, in which rows."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens


def rows_of(
    sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk], num_rows: int
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


def pages_of(
    sequences: Sequence[EngineSequence],
    chunks: Sequence[PromptChunk],
    rows: Sequence[int],
) -> dict[int, list[int]]:
    """The pages of the rows of a call: that decode, and `rows` of chunks."""
    pages = {one.row: one.pages for one in sequences if one.row is not None}
    of_chunks = (chunk.sequence.pages for chunk in chunks)
    return pages | dict(zip(rows, of_chunks, strict=True))


def row_tokens(
    sequences: Sequence[EngineSequence],
    chunks: Sequence[PromptChunk],
    rows: Sequence[int],
    *,
    changes: np.ndarray,
    counts: np.ndarray,
    width: int,
    num_tokens: int,
    num_prompts: int,
) -> RowTokens:
    """The operand of `extend_rows`, on its way to the device.

    Args:
        sequences: that decode.
        chunks: of prompts.
        rows: the row of each chunk.
        changes: see `RowPages`, as for the next two.
        counts: of all rows.
        width: the most pages of a row.
        num_tokens: of the call, padding included.
        num_prompts: chunks that it has room for.
    """
    num_rows = len(counts)
    starts, lengths = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    prompts, decodes = np.full(num_prompts, num_rows), np.zeros(num_rows, bool)
    prompts[: len(rows)] = sorted(rows)
    decodes[[one.row for one in sequences if one.row is not None]] = True
    for row, chunk in zip(rows, chunks, strict=True):
        starts[row], lengths[row] = chunk.start, chunk.stop
    ends = np.cumsum(lengths - starts + decodes).tolist()
    tokens = np.zeros(num_tokens, np.int32)  # of rows that decode the device knows them
    for row, chunk in zip(rows, chunks, strict=True):
        tokens[ends[row] - chunk.size : ends[row]] = chunk.tokens
    by_row = starts, lengths, prompts.astype(np.int32), decodes
    there, *pages = jax.device_put(((tokens, *by_row), changes, counts))
    return RowTokens(*there, pages=RowPages(pages[0], pages[1], width))
