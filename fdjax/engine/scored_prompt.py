"""`ScoredPrompt`: a prompt's log-probabilities, on their way to the host."""

import jax
import numpy as np

from fdjax.engine.request import Logprob, as_logprobs
from fdjax.generate.prompt_scores import PromptScores

type Piece = tuple[PromptScores, int]
"""Scores, and of how many tokens."""


class ScoredPrompt:
    """Gathers the scores of a prompt while it is computed.

    Args:
        num_tokens: of the prompt; the first has no score.
        num_top: most likely tokens that are reported too.
    """

    def __init__(self, num_tokens: int, num_top: int) -> None:
        self._num_tokens = num_tokens
        self._num_top = num_top
        self._pieces: list[Piece] = []
        self._taken = False

    @property
    def num_missing(self) -> int:
        """Tokens whose scores are not launched."""
        return self._num_tokens - 1 - sum(count for _, count in self._pieces)

    def add(self, pieces: list[Piece]) -> None:
        """Takes the scores of the next tokens."""
        self._pieces += pieces
        assert self.num_missing >= 0

    def wait(self) -> None:
        """The prompt will be computed anew: what is not whole is given up."""
        if self.num_missing:
            self._pieces.clear()

    def take(self) -> list[Logprob | None] | None:
        """Once, when they are whole, the scores, `None` for the first token."""
        if self._taken or self.num_missing:
            return None
        self._taken = True
        logprobs: list[Logprob | None] = [None]
        for scores, count in self._pieces:
            host: PromptScores = jax.device_get(scores)
            arrays = (host.logprobs, host.top_ids, host.top_logprobs)
            first = (np.asarray(array)[:count] for array in arrays)
            logprobs += as_logprobs(*first, num_top=self._num_top)
        self._pieces.clear()
        return logprobs
