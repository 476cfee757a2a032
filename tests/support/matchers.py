"""Grammars in token ids, without text."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fdjax.generate.masks import num_words
from fdjax.generate.stopping import FinishReason


def mask_of(tokens: Collection[int], *, vocab_size: int) -> np.ndarray:
    """A mask that allows some tokens."""
    mask = np.zeros(num_words(vocab_size), np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


@dataclass(frozen=True)
class Places:
    """At each place of an output, one of some tokens; then it ends.

    Attributes:
        allowed: tokens by place.
        vocab_size: of the model.
        slow: what may follow is known only to those who wait for it.
        end: why it ends.
    """

    allowed: Sequence[Collection[int]]
    vocab_size: int
    slow: bool = False
    end: FinishReason = FinishReason.STOP

    def matcher(self) -> "PlacesMatcher":
        return PlacesMatcher(self)


class PlacesMatcher:
    """See `Places`; refuses tokens that its mask did not allow."""

    def __init__(self, grammar: Places) -> None:
        self._grammar = grammar
        self._place = 0
        self.is_ready = True

    @property
    def finish_reason(self) -> FinishReason:
        self.is_ready = True
        ended = self._place == len(self._grammar.allowed)
        return self._grammar.end if ended else FinishReason.RUNNING

    def mask(self) -> np.ndarray:
        assert self.is_ready, "nobody has asked what may follow"
        allowed = self._grammar.allowed[self._place]
        return mask_of(allowed, vocab_size=self._grammar.vocab_size)

    def advance(self, token_id: int) -> None:
        assert self.is_ready, "the last token's mask was never made"
        assert token_id in self._grammar.allowed[self._place]
        self._place += 1
        self.is_ready = not self._grammar.slow

    def fork(self) -> "PlacesMatcher":
        assert self.is_ready, "the last token's mask was never made"
        other = PlacesMatcher(self._grammar)
        other._place = self._place
        return other
