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
        ConfigError: a value is out of range, or of another type.
    """

    mixed: bool = True
    max_itl_ms: float | None = None
    prefill_order: PrefillOrder = "fcfs"
    shared_reads: bool | None = None

    def __post_init__(self) -> None:
        _check_switch("mixed_steps", self.mixed)
        if self.shared_reads is not None:
            _check_switch("shared_prefix_reads", self.shared_reads)
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

    def check_beside(self, *, batch_invariant: bool) -> None:
        """Refuses what was asked for and would not be done.

        Raises:
            ConfigError: pages that rows share are to be read once, and what a row gets
                must not depend on who shares them.
        """
        if batch_invariant and self.shared_reads:
            raise ConfigError(
                "batch_invariant and shared_prefix_reads are both on, but which pages "
                "are read once depends on the other rows; leave one of them out"
            )


def _check_switch(name: str, value: object) -> None:
    """A string is true, whatever it says."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; use True or False")
