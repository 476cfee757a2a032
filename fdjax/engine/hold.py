"""`Hold`: how long the next launch may wait for what arrives. Host only."""

from collections.abc import Sequence

from fdjax.engine.awaited import Awaited
from fdjax.engine.budget import Timed, TokenBudget
from fdjax.engine.results import AwaitedTokens

# Of the time that a call should take, what is kept for calls that are faster; of what
# the host needs for a launch, how often that is kept; and seconds in any case.
_SPARE_PART, _SPARE_LAUNCHES, _SPARE_S = 0.15, 1.5, 2e-3
# Of the longest time of a launch, so much is left after another one.
_MEMORY = 0.95


class Hold:
    """Launches are as late as leaves the device no gap.

    A request that arrives while a call runs is in the next one, if that is not launched
    yet; else it waits for that one, too. A decode step is too short to be worth it. How
    long a call with prompts takes is known from those before: on an H200, of
    conversations, eight of ten calls of 30 ms and more took 0.96 to 1.05 times that.

    Args:
        budget: knows how long calls take.
    """

    def __init__(self, budget: TokenBudget) -> None:
        self._budget = budget
        self._host_s = 0.0
        self._watched: Awaited | None = None

    def launched(self, seconds: float) -> None:
        """Learns how long the host took from a step's begin to its last launch."""
        self._host_s = max(seconds, _MEMORY * self._host_s)

    def seconds(self, unread: Sequence[Awaited]) -> float:
        """That the next launch may wait from now on; ask again a moment later.

        Args:
            unread: what was launched and not read.
        """
        match unread:
            case [AwaitedTokens(timed=Timed() as timed) as launch]:
                return self._while_running(launch, timed)
            case _:
                return 0.0

    def _while_running(self, launch: AwaitedTokens, timed: Timed) -> float:
        watched, self._watched = self._watched, launch
        if launch.is_ready:
            # Nobody will wait for it: what it took would not be learnt, and whoever
            # took it to be longer would do so for ever.
            if watched is launch:
                self._budget.saw_end(timed)
            return 0.0
        left_s, whole_s = self._budget.left(timed)
        spare_s = _SPARE_PART * whole_s + _SPARE_LAUNCHES * self._host_s
        return max(left_s - spare_s - _SPARE_S, 0.0)
