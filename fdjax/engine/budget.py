"""`TokenBudget`: how many tokens a call with prompts and decoding rows may have."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

# Of what earlier calls have taught, so much is left after another one.
_MEMORY = 0.95
# Small calls all take as long as reading the weights, and so tell nothing of larger
# ones; but of twice the tokens a call takes no more than twice the time.
_MOST_GROWTH = 2
# Sizes of calls that differ by less, by their standard deviation, tell no slope.
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class Timed:
    """A call that was launched.

    Attributes:
        tokens: of it, padding included; of a call that pools without, as the sizes of
            such calls lie far apart.
        began_s: when it was launched, by the budget's clock.
        goes_on: another call of the same step comes next, and is timed with it.
    """

    tokens: int
    began_s: float
    goes_on: bool = False


class TokenBudget:
    """As many tokens as fit a time, by what calls took so far.

    The time of a call is taken to be a part that is always there (the weights are read)
    and one for each token; both follow from the last calls, by least squares. No call
    has more than twice the tokens of the largest of them, or the next larger size.

    Args:
        sizes: of calls, in tokens, in order.
        max_itl_ms: that a call with prompts should take at most while sequences make
            tokens; `None`: any time.
        clock: seconds.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        max_itl_ms: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sizes = sizes
        self._limit_s = math.inf if max_itl_ms is None else max_itl_ms / 1e3
        self._clock = clock
        # When the device has ended what was read last; before it was read, if nobody
        # waited for it.
        self._ended_s: float | None = -math.inf
        # The last call that was seen to end before it was read, and when.
        self._seen: tuple[Timed | None, float] = (None, 0.0)
        # Weighted sums over calls: 1, tokens, their squares, seconds, and products.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        # Tokens of the largest call, which is forgotten like the others.
        self._largest = 0.0

    def tokens(self, num_decoding: int, *, others_wait: bool = False) -> int:
        """The most that the next call may have, rows that decode included.

        Args:
            num_decoding: rows of it that decode.
            others_wait: so do sequences without a row in it, whose next tokens come
                after it. If nobody decodes, nobody has to wait for prompts.
        """
        if not (num_decoding or others_wait) or math.isinf(self._limit_s):
            return self._sizes[-1]
        # Prompts go on, however slowly: by as many tokens as the smallest call has.
        least = min(num_decoding + self._sizes[0], self._sizes[-1])
        usable = [size for size in self._sizes if size >= least]
        reach = self._reach()
        fitting = [
            size
            for size in usable
            if size <= reach and self._seconds(size) <= self._limit_s
        ]
        return fitting[-1] if fitting else usable[0]

    def launched(
        self, tokens: int, *, behind: Timed | None = None, goes_on: bool = False
    ) -> Timed:
        """Notes a call that is launched now.

        Args:
            tokens: of it.
            behind: the call of the same step that was launched before, and goes on:
                what follows is both.
            goes_on: see `Timed`.
        """
        if behind is not None:
            return Timed(behind.tokens + tokens, behind.began_s, goes_on)
        return Timed(tokens, self._clock(), goes_on)

    def read(self, call: Timed | None, *, waited: bool) -> None:
        """Learns from a launch that was read.

        Args:
            call: what it was; `None` for one of another kind.
            waited: it was not there when the host came for it.
        """
        if call is not None and call.goes_on:
            return
        now, before = self._clock(), self._ended_s
        if call is not None and call is self._seen[0]:
            now, waited = self._seen[1], True
        self._ended_s = now if waited else None
        if call is None or not waited or before is None:
            return
        seconds, tokens = now - max(call.began_s, before), call.tokens
        new = (1.0, tokens, tokens**2, seconds, tokens * seconds)
        sums = (_MEMORY * old + more for old, more in zip(self._sums, new, strict=True))
        self._sums = (next(sums), next(sums), next(sums), next(sums), next(sums))
        self._largest = max(tokens, _MEMORY * self._largest)

    def left(self, call: Timed) -> tuple[float, float]:
        """Seconds that a call under way should take from now on, and in all.

        Zeros where it is not known when it began, or how long such calls take.
        """
        ended_s, whole_s = self._ended_s, self._seconds(call.tokens)
        if ended_s is None or math.isinf(whole_s) or self._is_new(call.tokens):
            return 0.0, 0.0
        return max(call.began_s, ended_s) + whole_s - self._clock(), whole_s

    def saw_end(self, call: Timed) -> None:
        """Notes that a call has just ended, which was under way a moment ago."""
        if call is not self._seen[0]:
            self._seen = call, self._clock()

    def _reach(self) -> float:
        """Tokens of the largest call that may be tried."""
        larger = (size for size in self._sizes if size > self._largest)
        return max(_MOST_GROWTH * self._largest, next(larger, 0))

    def _is_new(self, tokens: int) -> bool:
        """All calls so far were of one size, and so many tokens are fewer."""
        weight, sum_n, sum_nn, *_ = self._sums
        mean_n = sum_n / weight
        spread = _LEAST_SPREAD * mean_n
        return sum_nn / weight - mean_n**2 <= spread**2 and tokens < mean_n - spread

    def _seconds(self, tokens: int) -> float:
        """That a call of so many tokens should take.

        Where all calls so far were of about one size, one of the next larger size is
        taken to be no slower: to try it is the way to know.
        """
        weight, sum_n, sum_nn, sum_s, sum_ns = self._sums
        if not weight:
            return math.inf
        mean_n, mean_s = sum_n / weight, sum_s / weight
        variance = sum_nn / weight - mean_n**2
        if variance > (_LEAST_SPREAD * mean_n) ** 2:
            slope = (sum_ns / weight - mean_n * mean_s) / variance
            return mean_s + max(slope, 0.0) * (tokens - mean_n)
        larger = [size for size in self._sizes if size > mean_n * (1 + _LEAST_SPREAD)]
        return mean_s if tokens <= min(larger, default=tokens) else math.inf
