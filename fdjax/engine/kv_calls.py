"""Calls that change nothing but the KV array."""

from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from fdjax.engine.awaited import copy_ahead
from fdjax.engine.buckets import SCORED_TOKENS, Buckets, smallest_fitting
from fdjax.engine.packing import packed, scored
from fdjax.engine.pooled_prompt import AwaitedStates
from fdjax.engine.programs import Programs
from fdjax.engine.scored_prompt import Piece
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.kernels.paged import KVCache
from fdjax.memory.kv import KVLayout

# Pages that one launch moves at most: few shapes, and as a rule one launch.
MOVE_SIZES = (8, 64)


class KVCalls:
    """Launches them; each donates the array, and gives it back changed.

    Args:
        programs: compiled.
        layout: of the array.
        buckets: shapes.
    """

    def __init__(self, programs: Programs, layout: KVLayout, buckets: Buckets) -> None:
        self._programs = programs
        self._layout = layout
        self._buckets = buckets

    def pool(
        self, kv: KVCache, chunks: Sequence[PromptChunk]
    ) -> tuple[KVCache, AwaitedStates]:
        """Computes chunks of sequences that are pooled."""
        operands = packed(chunks, self._buckets, self._layout, self._buckets.pooled)
        states, kv = self._programs.pool(kv, *operands)
        copy_ahead(states)
        for row, chunk in enumerate(chunks):
            if chunk.sequence.pooled is not None:
                chunk.sequence.pooled.add(states, row)
        done = [chunk.sequence for chunk in chunks if chunk.is_last]
        return kv, AwaitedStates(states, done)

    def score(
        self, kv: KVCache, sequence: EngineSequence, start: int, stop: int
    ) -> tuple[KVCache, list[Piece]]:
        """Scores what follows each of a sequence's tokens from `start` to `stop`.

        Their keys and values are written too; prefill writes them anew.
        """
        pieces: list[Piece] = []
        for begin in range(start, stop, SCORED_TOKENS):
            end = min(begin + SCORED_TOKENS, stop)
            operands = scored(
                sequence, begin, end, self._buckets, self._layout, size=SCORED_TOKENS
            )
            scores, kv = self._programs.score(kv, *operands)
            copy_ahead(scores)
            pieces.append((scores, end - begin))
        return kv, pieces

    def move(self, kv: KVCache, moves: Mapping[int, int]) -> KVCache:
        """Copies pages to others; see `fdjax.kernels.page_move`.

        Args:
            kv: the array.
            moves: from which page to which.
        """
        for pairs in _parts([*moves.items()], MOVE_SIZES[-1]):
            size = smallest_fitting(MOVE_SIZES, len(pairs))
            ids = np.full((2, size), self._layout.num_pages, np.int32)
            ids[:, : len(pairs)] = np.array(pairs, np.int32).T
            kv = self._programs.move(kv, *jax.device_put((ids[0], ids[1])))
        return kv


def _parts[T](items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
