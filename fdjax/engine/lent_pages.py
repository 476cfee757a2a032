"""`LentPages`: how much of the KV array's end each of an engine's calls needs."""

from collections.abc import Sequence
from functools import lru_cache

from fdjax import device
from fdjax.engine.step_calls import StepCalls, StepKind
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
        self.pages = lru_cache(maxsize=None)(self._pages)

    def _pages(self, call: StepKind, num_tokens: int) -> int:
        """How many, of a call of so many tokens, padding included."""
        calls = self._calls if call == "decode" else self._calls[-1:]
        most = max(activation_bytes(one.of(call, num_tokens)) for one in calls)
        return -(-most // self._page_bytes)
