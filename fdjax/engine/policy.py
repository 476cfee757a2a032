"""`StepPolicy`: how prompts and rows that decode share the steps of an engine."""

import math
from dataclasses import dataclass
from typing import Literal

from fdjax.errors import ConfigError

PrefillOrder = Literal["fcfs", "shortest"]
ORDERS: tuple[PrefillOrder, ...] = ("fcfs", "shortest")


@dataclass(frozen=True)
class StepPolicy:
    """What is computed beside what, and which prompts go first.

    Attributes:
        mixed: a call has prompts and rows that decode; else they take turns.
        max_itl_ms: milliseconds that a call with prompts should not exceed while
            sequences make tokens, so that these come no further apart; `None` fills
            every call.
        prefill_order: "fcfs": of prompts the one goes first that was let in first, but
            one that does not fit into a call leaves half of it to others that do, and
            prompts that fit into half of one have half of every other call;
            "shortest": the one that has the fewest tokens left, but before one waits
            for more tokens of those that came later than it has itself, and a call's,
            it goes before them all. Priorities and tenants come before either.
        shared_reads: in steps that decode, pages that rows share are read once for all
            of them, where that saves enough; there are more programs to compile.
            `None`: where a GPU has kernels for it.

    Raises:
        ConfigError: a value is out of range.
    """

    mixed: bool = True
    max_itl_ms: float | None = None
    prefill_order: PrefillOrder = "fcfs"
    shared_reads: bool | None = None

    def __post_init__(self) -> None:
        limit: object = self.max_itl_ms
        is_real = isinstance(limit, int | float)
        if limit is not None and not (is_real and 0 < limit < math.inf):
            raise ConfigError(
                f"max_itl_ms is {limit!r}; use milliseconds above 0, or leave it out"
            )
        if self.prefill_order not in ORDERS:
            raise ConfigError(
                f"prefill_order is {self.prefill_order!r}; use one of "
                f"{', '.join(ORDERS)}"
            )
