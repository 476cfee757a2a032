"""`LentPages`: how much of the KV array's end each of an engine's calls needs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from fdjax import device
from fdjax.engine.borrowing import NOTHING_BORROWED, Borrowing, BorrowingCall
from fdjax.engine.buckets import Buckets
from fdjax.engine.step_calls import StepCall, StepCalls
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.program import OP


def lends(
    config: ModelConfig, layout: KVLayout, *, num_rows: int, max_model_len: int
) -> bool:
    """Whether steps keep what they need in the KV array, at its end.

    That is where one call serves all layers; else XLA has it beside the array.

    Args:
        config: the model.
        layout: of the KV array; its number of pages does not matter.
        num_rows: rows of the largest batch.
        max_model_len: longest sequence, in tokens.
    """
    if device.platform() != "gpu":
        return False
    calls, width = StepCalls(config, layout, num_rows), layout.pages_for(max_model_len)
    return all(
        OP.fast(calls.of(kind, num_rows, width)) for kind in ("extend", "decode")
    )


def borrowing_of(
    config: ModelConfig, layout: KVLayout, buckets: Buckets, *, shares: bool
) -> Borrowing:
    """What an engine's calls borrow of a KV array.

    Args:
        config: the model.
        layout: of the array; nothing is borrowed of one that is not lent.
        buckets: shapes of the calls.
        shares: rows that decode may share prefixes, read once for all of them.
    """
    if not layout.lent:
        return NOTHING_BORROWED
    sizes = {"decode": buckets.rows, "extend": buckets.prefills, "pool": buckets.pooled}
    return LentPages(
        config,
        layout,
        num_rows=buckets.rows[-1],
        widths=buckets.widths,
        sizes=sizes,
        shares=shares,
    )


class LentPages:
    """Pages at the KV array's end that a call overwrites.

    Args:
        config: the model.
        layout: of the KV array.
        num_rows: rows of the largest batch.
        widths: pages that page tables have room for, of all programs.
        sizes: tokens of calls by their program, rising. Of fewer tokens the keys may be
            cut into more pieces; a call is told the most of those up to its own.
        shares: see `borrowing_of`.
    """

    def __init__(
        self,
        config: ModelConfig,
        layout: KVLayout,
        *,
        num_rows: int,
        widths: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        shares: bool = False,
    ) -> None:
        self._page_bytes = layout.page_bytes
        self._sizes = sizes
        self._widths = widths
        self._shares = shares
        self._calls = StepCalls(config, layout, num_rows)
        self._known: dict[tuple[BorrowingCall, int], int] = {}

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        """See `Borrowing`."""
        key = call, num_tokens
        if key not in self._known:
            smaller = (n for n in self._sizes.get(call, ()) if n < num_tokens)
            before = max((self.pages(call, n) for n in smaller), default=0)
            self._known[key] = max(before, self._pages(call, num_tokens))
        return self._known[key]

    def _pages(self, call: BorrowingCall, num_tokens: int) -> int:
        calls = [
            self._calls.of(kind, num_tokens, width)
            for kind, width in self._shapes(call, num_tokens)
        ]
        # What the chain does not serve has its memory beside the array.
        most = max((OP.workspace_bytes(one) for one in calls), default=0)
        return -(-most // self._page_bytes)

    def _shapes(
        self, call: BorrowingCall, num_tokens: int
    ) -> Iterator[tuple[StepCall, int]]:
        """Its kinds, and the widths of their page tables."""
        # How attention of rows that decode is cut depends on the width.
        widths = self._widths if call in ("decode", "beams") else self._widths[-1:]
        for width in widths:
            yield call, width
        if call == "beams":
            pairs = itertools.combinations_with_replacement(widths, 2)
            for both in sorted(set(map(sum, pairs))):
                yield "separate", both
        # One row shares with nobody: what a sequence needs alone is what was planned.
        if call == "decode" and self._shares and num_tokens > 1:
            yield "shared", self._widths[-1]
