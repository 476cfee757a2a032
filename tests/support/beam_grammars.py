"""Grammars by which the candidates of a beam search are judged, in token ids."""

from collections.abc import Callable, Sequence

import numpy as np

from fdjax.generate.masks import allowed_bits
from fdjax.generate.stopping import FinishReason


class Stops:
    """A grammar of outputs that end with a token, as one that completes a string would.

    And a matcher of itself: it has no state but why it ended.
    """

    is_ready = True

    def __init__(self, ends: Callable[[int], bool], reason: int = 0) -> None:
        self.ends = ends
        self.finish_reason = FinishReason(reason)

    def matcher(self) -> "Stops":
        return Stops(self.ends)

    def fork(self) -> "Stops":
        return Stops(self.ends, self.finish_reason)

    def mask(self) -> np.ndarray:
        return np.full(1, 2**32 - 1, np.uint32)

    def advance(self, token_id: int) -> None:
        if self.ends(token_id):
            self.finish_reason = FinishReason.STOP


def is_end(token: int) -> bool:
    """The tokens that end outputs."""
    return token % 5 == 0


class Follows(Stops):
    """What may come next depends on the last token: each beam has a mask of its own."""

    last = 0

    def __init__(
        self, ends: Callable[[int], bool], vocab_size: int, reason: int = 0
    ) -> None:
        super().__init__(ends, reason)
        self.vocab_size = vocab_size

    def matcher(self) -> "Follows":
        return Follows(self.ends, self.vocab_size)

    def fork(self) -> "Follows":
        other = Follows(self.ends, self.vocab_size, self.finish_reason)
        other.last = self.last
        return other

    def mask(self) -> np.ndarray:
        tokens = [one for one in range(self.vocab_size) if _may_follow(self.last, one)]
        return allowed_bits(tokens, vocab_size=self.vocab_size)

    def advance(self, token_id: int) -> None:
        assert _may_follow(self.last, token_id)
        self.last = token_id
        super().advance(token_id)


def follows(tokens: Sequence[int]) -> bool:
    """Whether `Follows` allows an output."""
    return all(map(_may_follow, [0, *tokens], tokens))


def _may_follow(last: int, token: int) -> bool:
    return (token - last) % 7 in (1, 2)
