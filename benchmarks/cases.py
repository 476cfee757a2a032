"""What decode benchmarks measure: `batch x context`."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        batch: rows.
        context: tokens of each prompt.
        steps: tokens made after it.
    """

    batch: int
    context: int
    steps: int

    @property
    def max_model_len(self) -> int:
        """Tokens of a row at the end."""
        return self.context + self.steps

    def prompts(self, vocab_size: int) -> np.ndarray:
        """Random prompts, `[batch, context]`; the same in every run."""
        random = np.random.default_rng(self.batch * 1_000_003 + self.context)
        return random.integers(0, vocab_size, (self.batch, self.context))


def parse_cases(text: str, *, steps: int) -> list[Case]:
    """Cases of "1x1024,8x1024"."""
    pairs = (entry.split("x") for entry in text.split(","))
    return [Case(int(batch), int(context), steps) for batch, context in pairs]
