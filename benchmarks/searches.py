"""What the benchmarks of beam search measure."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Search:
    """One measurement.

    Attributes:
        prompts: searches at a time.
        beams: of each; 0 is an ordinary row.
        context: tokens of each prompt.
        tokens: made after it.
    """

    prompts: int
    beams: int
    context: int
    tokens: int

    def drawn(self, vocab_size: int) -> np.ndarray:
        """Random prompts, the same in every run."""
        random = np.random.default_rng(self.prompts * 1_000_003 + self.context)
        return random.integers(0, vocab_size, (self.prompts, self.context))


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds until all have their first token, and until all have their last."""

    first_s: float
    whole_s: float


type Run = Callable[[Search], Times]
"""Makes one measurement."""
