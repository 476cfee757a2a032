"""`Judges`: the matchers of a search's beams, which judge their continuations."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fdjax.engine.matcher import Matcher
from fdjax.generate.beam_run import Judgement
from fdjax.generate.beam_state import OUT
from fdjax.generate.stopping import FinishReason


class Judges:
    """A matcher for each beam; candidates have those of their parents, forked.

    Where the text of an output decides whether it ends or what may follow, a search
    waits for this before it chooses: one step late, a beam that had ended would have
    taken the place of another.

    Args:
        first: at the beginning of all outputs.
        num_words: of a mask for the model's tokens; a matcher's may have one, for all.

    Attributes:
        has_candidates: some were read that are not judged yet.
        ended: why hypotheses ended, where a matcher says so: by number of tokens,
            parent and last token.
    """

    def __init__(self, first: Matcher, num_words: int) -> None:
        self._first = first
        self._num_words = num_words
        self._of_beams: dict[int, Matcher] = {0: first}
        self._of_candidates: dict[int, Matcher] = {}
        self.has_candidates = False
        self._keys: dict[int, tuple[int, int, int]] = {}
        self._ends, self._width = np.zeros((1, 1), np.bool_), 1
        self.ended: dict[tuple[int, int, int], FinishReason] = {}

    @property
    def is_ready(self) -> bool:
        """All candidates can be judged without waiting."""
        return all(one.is_ready for one in self._of_candidates.values())

    def first_mask(self) -> np.ndarray:
        """Which tokens may come first."""
        return np.broadcast_to(self._first.mask(), self._num_words)

    def chosen(self, places: Sequence[int]) -> None:
        """The beams that go on, as places among the candidates."""
        of = self._of_candidates
        self._of_beams = {b: of[p] for b, p in enumerate(places) if p in of}

    def look(
        self, candidates: Any, *, width: int, length: int, stop_ids: set[int]
    ) -> None:
        """Lets matchers follow continuations.

        Args:
            candidates: `Candidates` of one group, as NumPy arrays.
            width: how many of them go on.
            length: of them, in tokens.
            stop_ids: tokens that end a beam whatever its text; no matcher takes them.
        """
        self._of_candidates, self._keys = {}, {}
        self._ends, self._width, self.has_candidates = candidates.ends, width, True
        rows = zip(
            candidates.sums[0].tolist(),
            candidates.parents[0].tolist(),
            candidates.tokens[0].tolist(),
            strict=True,
        )
        for place, (total, parent, token) in enumerate(rows):
            matcher = self._of_beams.get(parent)
            if total < OUT / 2 or token in stop_ids or matcher is None:
                continue
            matcher = matcher.fork()
            matcher.advance(token)
            self._of_candidates[place] = matcher
            self._keys[place] = (length, parent, token)

    def judgement(self) -> Judgement | FinishReason:
        """What is to be known of candidates, sent; or why the search fails. Waits."""
        ends = np.zeros_like(self._ends)
        for place, matcher in self._of_candidates.items():
            reason = matcher.finish_reason
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                ends[0, place] = True
                self.ended[self._keys[place]] = reason
            elif reason != FinishReason.RUNNING:
                return reason
        self.has_candidates = False
        return Judgement(*jax.device_put((ends, self._masks(self._ends | ends))))

    def _masks(self, ends: np.ndarray) -> np.ndarray:
        """Of the first that do not end, as many as go on; of others none is made."""
        allowed = np.zeros((1, self._width, self._num_words), np.uint32)
        going_on = np.flatnonzero(~ends[0])[: self._width].tolist()
        for row, place in enumerate(going_on):
            if place in self._of_candidates:
                allowed[0, row] = self._of_candidates[place].mask()
        return allowed
