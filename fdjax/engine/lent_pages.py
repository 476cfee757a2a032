"""`LentPages`: how much of the KV array's end each of an engine's calls needs."""

from collections.abc import Sequence

from fdjax import device
from fdjax.engine.borrowing import NOTHING_BORROWED, Borrowing, BorrowingCall
from fdjax.engine.buckets import Buckets
from fdjax.engine.step_calls import StepCalls
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.program import OP
from fdjax.models.program.cuda import activation_bytes


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
    calls = StepCalls(config, layout, num_rows, max_model_len)
    return all(OP.fast(calls.of(kind, num_rows)) for kind in ("extend", "decode"))


def borrowing_of(config: ModelConfig, layout: KVLayout, buckets: Buckets) -> Borrowing:
    """What an engine's calls borrow of a KV array.

    Args:
        config: the model.
        layout: of the array; nothing is borrowed of one that is not lent.
        buckets: shapes of the calls.
    """
    if not layout.lent:
        return NOTHING_BORROWED
    rows, widths = buckets.rows[-1], buckets.widths
    return LentPages(config, layout, num_rows=rows, widths=widths)


class LentPages:
    """Pages at the KV array's end that a call overwrites.

    Args:
        config: the model.
        layout: of the KV array.
        num_rows: rows of the largest batch.
        widths: pages that page tables have room for, of all programs.
    """

    def __init__(
        self,
        config: ModelConfig,
        layout: KVLayout,
        *,
        num_rows: int,
        widths: Sequence[int],
    ) -> None:
        self._page_bytes = layout.page_bytes
        # How attention of rows that decode is cut depends on the width.
        self._calls = [
            StepCalls(config, layout, num_rows, width * layout.page_size)
            for width in widths
        ]
        self._known: dict[tuple[BorrowingCall, int], int] = {}

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        """See `Borrowing`."""
        key = call, num_tokens
        if key not in self._known:
            self._known[key] = self._pages(call, num_tokens)
        return self._known[key]

    def _pages(self, call: BorrowingCall, num_tokens: int) -> int:
        calls = self._calls if call == "decode" else self._calls[-1:]
        most = max(activation_bytes(one.of(call, num_tokens)) for one in calls)
        return -(-most // self._page_bytes)
