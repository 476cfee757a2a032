"""`BeamTrace`: from the tokens and parents of every step to whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TracedLogprobs:
    """Log-probabilities of a sequence's tokens, by position.

    Attributes:
        chosen: of each token.
        ids: the most likely tokens in its place, `[T, N]`.
        values: their log-probabilities.
    """

    chosen: np.ndarray
    ids: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class TracedStep:
    """A step of a group, as arrays or lists by beam.

    Attributes:
        tokens: the last token of each beam.
        parents: which one it was before.
        logprobs: of the tokens; `None` where nobody asks for them, as for the next two.
        top_ids: the most likely tokens after each parent.
        top_logprobs: of these.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    logprobs: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


class BeamTrace:
    """What a group's beams were after each step, on the host."""

    def __init__(self) -> None:
        self._steps: list[TracedStep] = []

    def __len__(self) -> int:
        """Steps."""
        return len(self._steps)

    def add(self, step: TracedStep) -> None:
        """Takes in a step."""
        self._steps.append(step)

    def path(self, beam: int, length: int) -> tuple[list[int], list[int]]:
        """The tokens of a beam as it was after `length` steps, and its parents."""
        tokens: list[int] = []
        parents: list[int] = []
        for step in reversed(self._steps[:length]):
            tokens.append(step.tokens[beam])
            beam = step.parents[beam]
            parents.append(beam)
        return tokens[::-1], parents[::-1]

    def hypothesis(
        self, parent: int, token: int, length: int
    ) -> tuple[list[int], list[int]]:
        """The same of a beam that ended with `token`: see `Hypotheses`."""
        tokens, parents = self.path(parent, length - 1)
        return [*tokens, token], [*parents, parent]

    def logprobs(self, parents: Sequence[int], last: float) -> TracedLogprobs | None:
        """Those of a hypothesis.

        Args:
            parents: of its tokens.
            last: of its last token.

        Returns:
            `None` where nobody asks for them.
        """
        chosen = [last]
        ids: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for place, parent in enumerate(parents):
            step = self._steps[place]
            if step.logprobs is None or step.top_ids is None:
                return None
            assert step.top_logprobs is not None
            if place:
                before = self._steps[place - 1].logprobs
                assert before is not None
                chosen.insert(-1, float(before[parent]))
            ids.append(step.top_ids[parent])
            values.append(step.top_logprobs[parent])
        return TracedLogprobs(np.array(chosen), np.stack(ids), np.stack(values))
