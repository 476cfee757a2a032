"""What rows may emit next, by the matchers of their sequences."""

from collections.abc import Sequence

import numpy as np

from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.masks import stack_masks


def masks_of(sequences: Sequence[EngineSequence]) -> tuple[list[int], list[np.ndarray]]:
    """The rows of sequences that have a matcher, and the mask of each."""
    rows: list[int] = []
    masks: list[np.ndarray] = []
    for sequence in sequences:
        if sequence.matcher is not None and sequence.row is not None:
            rows.append(sequence.row)
            masks.append(sequence.matcher.mask())
    return rows, masks


def padded_masks(
    rows: Sequence[int],
    masks: Sequence[np.ndarray],
    buckets: Buckets,
    *,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The operands of a call that replaces masks: rows, and a mask of each.

    Args:
        rows: whose masks they are.
        masks: of each row, or none at all.
        buckets: shapes; rows past the last one are padding.
        vocab_size: tokens of the model.
    """
    num_rows = smallest_fitting(buckets.mask_rows, len(rows))
    padded = np.full(num_rows, buckets.rows[-1], np.int32)
    padded[: len(rows)] = rows
    return padded, stack_masks(masks, num_rows=num_rows, vocab_size=vocab_size)
