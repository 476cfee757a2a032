"""Which pages the rows of a decode step share, kept while the same rows decode."""

from collections.abc import Sequence

import numpy as np

from fdjax.config import Alibi
from fdjax.engine.sequence import EngineSequence
from fdjax.kernels import ffi
from fdjax.kernels.paged import SharedPrefixes
from fdjax.kernels.shared_prefix import find_groups, plan_prefixes, table
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE, NAME
from fdjax.memory.kv import KVLayout
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig


class SharedReads:
    """Finds prefixes that are worth to be read once for all rows that share them.

    They depend on which rows there are, not on how long these have become: a row's
    shared pages lie before all that it writes.

    Args:
        config: of the model.
        layout: of the KV array.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout) -> None:
        attention = config.layers[0].attention
        self._num_kv_heads = attention.num_kv_heads
        self._group = attention.num_heads // attention.num_kv_heads
        self._page_size = layout.page_size
        # A table that cannot be read is told at the start, and not by a step.
        self._worth = table.PART.find()
        self._rows: tuple[tuple[int, list[int]], ...] = ()
        self._shape = (0, 0)
        self._found: SharedPrefixes | None = None

    @staticmethod
    def wanted(asked: bool | None, config: ModelConfig, plan: MemoryPlan) -> bool:
        """Whether an engine looks for them: as asked, or where a GPU has the kernels.

        Never where attention gathers pages: it has each row's own copy of them, and
        room for tables as wide as the rows are long, not for the widest.

        Args:
            asked: `StepPolicy.shared_reads`.
            config: of the model, which must `suit`.
            plan: of the memory.
        """
        if plan.page_workspace_bytes or not SharedReads.suit(config):
            return False
        if asked is not None:
            return asked
        suits = plan.layout.page_size >= LEAST_SHARED_PAGE
        return suits and ffi.refuse(NAME, platform="gpu") is None

    @staticmethod
    def suit(config: ModelConfig) -> bool:
        """Whether it reads once at all: alike layers in which positions do not matter.

        With `batch_invariant` what a row gets must not depend on who shares its pages.
        """
        sizes = {
            (spec.attention.num_heads, spec.attention.num_kv_heads)
            for spec in config.layers
        }
        return (
            not config.batch_invariant
            and len(sizes) == 1
            and all(
                spec.attention.window is None
                and not isinstance(spec.attention.positions, Alibi)
                for spec in config.layers
            )
        )

    def may_find(self, num_rows: int, width: int) -> bool:
        """Whether rows of so many pages can share as much as must be saved.

        Where they cannot, `of` finds nothing, and no program need be there.
        """
        most = (num_rows - 1) * width * self._page_size
        return most >= max(self._worth.of_batch, 1)

    def of(
        self,
        sequences: Sequence[EngineSequence],
        pages: np.ndarray,
    ) -> SharedPrefixes | None:
        """What the rows of sequences share, or `None` where too little would be saved.

        Args:
            sequences: that decode.
            pages: of all rows of the call, `[B, W]`.
        """
        # A sequence has the same list of pages as long as it has its row
        # and none is moved.
        now = tuple((sequence.row or 0, sequence.pages) for sequence in sequences)
        if self._shape != pages.shape or not self._are(now):
            self._rows, self._shape = now, pages.shape
            self._found = self._find(sequences, pages)
        return self._found

    def none(self, num_rows: int) -> SharedPrefixes:
        """No prefixes, in arrays of the shape that all prefixes have."""
        return plan_prefixes(
            (), rows=num_rows, num_kv_heads=self._num_kv_heads, group=self._group
        )

    def _are(self, now: tuple[tuple[int, list[int]], ...]) -> bool:
        return len(now) == len(self._rows) and all(
            row == before and held is was
            for (row, held), (before, was) in zip(now, self._rows, strict=True)
        )

    def _find(
        self, sequences: Sequence[EngineSequence], pages: np.ndarray
    ) -> SharedPrefixes | None:
        # Most often nobody begins as another does: no need to look at all pages then.
        rows = [s.row or 0 for s in sequences if len(s.tokens) > self._page_size]
        if len(set(pages[rows, 0].tolist())) == len(rows):
            return None
        lengths = [0] * len(pages)
        for sequence in sequences:
            # The device has these at least: what it has written since is not shared.
            lengths[sequence.row or 0] = len(sequence.tokens)
        groups = find_groups(
            pages, lengths, page_size=self._page_size, worth=self._worth
        )
        if not groups:
            return None
        return plan_prefixes(
            groups,
            rows=len(pages),
            num_kv_heads=self._num_kv_heads,
            group=self._group,
        )
