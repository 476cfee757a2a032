"""What the engine asks of a grammar, answered by llguidance in threads."""

import copy
import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fdjax.generate.stopping import FinishReason
from fdjax.serve.lanes import Lanes

if TYPE_CHECKING:
    from llguidance import LLMatcher

_LOGGER = logging.getLogger(__name__)

# Of processor. Most masks take well under a millisecond; those of a grammar that can be
# read in many ways grow to 0.1 s, and are no reason for others to wait.
_USUAL_SECONDS = 0.005
_MAX_SECONDS = 1.0
# Of these, while a token is taken in: no other thread of Python goes on meanwhile.
_USUAL_HELD_SECONDS = 0.0005
_MAX_HELD_SECONDS = 0.1

# What may come next, and FinishReason.RUNNING; or nothing, and why.
type Following = tuple[np.ndarray | None, FinishReason]


@dataclass(frozen=True)
class EndBits:
    """Bits of tokens.

    Attributes:
        text: all but the model's end-of-sequence tokens.
        ends: tokens that end this request, where its text may end.
    """

    text: np.ndarray
    ends: np.ndarray


class TokenGrammar:
    """See `fdjax.engine.matcher.Grammar`.

    Args:
        matcher: at the beginning; it stays there.
        bits: of tokens that end a text.
        following: what comes first.
        lanes: where masks are made.
        owner: whose request it is.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        bits: EndBits,
        following: Following,
        lanes: Lanes,
        owner: str = "",
    ) -> None:
        self.start = matcher
        self.bits = bits
        self.following = following
        self.lanes = lanes
        self.owner = owner

    def matcher(self) -> "TokenMatcher":
        """See `fdjax.engine.matcher.Grammar.matcher`."""
        return TokenMatcher(self)


@dataclass
class _TimeLeft:
    """Of processor, beyond what masks usually take; threads may lose a little of it.

    Attributes:
        total_s: seconds in all.
        held_s: of those in which no other thread of Python runs.
    """

    total_s: float
    held_s: float


class TokenMatcher:
    """See `fdjax.engine.matcher.Matcher`.

    Its masks may take `_USUAL_SECONDS` each and `_MAX_SECONDS` beside that, and
    likewise what holds all threads: then it ends, lest a grammar keep others waiting.
    Those that are forked from each other share that time.
    """

    def __init__(self, grammar: TokenGrammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.start
        self._is_own = False
        self._left = _TimeLeft(_MAX_SECONDS, _MAX_HELD_SECONDS)
        self._last_s = 0.0
        self._next: Future[Following] = Future()
        self._next.set_result(grammar.following)

    @property
    def is_ready(self) -> bool:
        """See `fdjax.engine.matcher.Matcher.is_ready`."""
        return self._next.done()

    @property
    def finish_reason(self) -> FinishReason:
        """See `fdjax.engine.matcher.Matcher.finish_reason`."""
        return self._next.result()[1]

    def mask(self) -> np.ndarray:
        """See `fdjax.engine.matcher.Matcher.mask`."""
        mask = self._next.result()[0]
        assert mask is not None, "the output has ended"
        return mask

    def advance(self, token_id: int) -> None:
        """See `fdjax.engine.matcher.Matcher.advance`."""
        lanes, is_slow = self._grammar.lanes, self._last_s > _USUAL_SECONDS
        pool = lanes.slow if is_slow else lanes.quick
        self._next = pool.submit(
            partial(self._advanced, token_id),
            owner=self._grammar.owner,
            rank=_MAX_SECONDS - self._left.total_s,
        )

    def fork(self) -> "TokenMatcher":
        """See `fdjax.engine.matcher.Matcher.fork`; nothing is copied yet."""
        assert self.is_ready, "the last token is still being taken in"
        self._is_own = False
        return copy.copy(self)

    def _advanced(self, token_id: int) -> Following:
        start_s = time.thread_time()
        try:
            following = self._followed(token_id)
        except BaseException:  # a panic of Rust is no Exception; the engine must go on
            _LOGGER.exception("a grammar's matcher has failed; its output ends there")
            return None, FinishReason.LENGTH
        self._last_s = time.thread_time() - start_s
        self._left.total_s -= self._last_s - _USUAL_SECONDS
        is_spent = min(self._left.total_s, self._left.held_s) < 0
        if is_spent and following[1] == FinishReason.RUNNING:
            return None, FinishReason.SLOW_GRAMMAR
        return following

    def _followed(self, token_id: int) -> Following:
        if not self._is_own:  # copying may take milliseconds: not earlier
            self._matcher, self._is_own = self._matcher.deep_copy(), True
        start_s = time.thread_time()
        self._matcher.consume_token(token_id)
        self._left.held_s -= time.thread_time() - start_s - _USUAL_HELD_SECONDS
        return what_follows(self._matcher, self._grammar.bits)


def what_follows(matcher: "LLMatcher", bits: EndBits) -> Following:
    """What may come now. What was cut short by a limit ends like a text too long."""
    allowed = np.frombuffer(matcher.compute_bitmask(), np.uint32)
    allowed = allowed[: len(bits.text)] & bits.text
    if matcher.is_error():
        _LOGGER.warning("a grammar cannot be followed further: %s", matcher.get_error())
        return None, FinishReason.LENGTH
    accepting = matcher.is_accepting()
    if not allowed.any():
        return None, FinishReason.STOP if accepting else FinishReason.LENGTH
    return allowed | bits.ends if accepting else allowed, FinishReason.RUNNING
