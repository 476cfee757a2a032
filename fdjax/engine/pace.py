"""`Pace`: how many decode steps a launch has."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """The decode steps of one launch.

    Attributes:
        count: how many; a row may take part in fewer.
        began_s: when the call began, by the pace's clock.
        returned_s: when it returned.
        is_alone: nothing else ran since the decode steps before.
    """

    count: int
    began_s: float
    returned_s: float
    is_alone: bool


class Pace:
    """As many steps as a time allows: clients get tokens when their launch has ended.

    Steps of one launch save the host's work between them. The time of the last launch
    says how many the next one may have. Nothing is compiled for it: how many steps a
    row takes part in is an operand. But where it `is_by_count`, a launch of `most`
    steps has a program of its own.

    Args:
        most: steps of a launch; what programs are compiled for.
        max_launch_s: seconds that a launch of more than one step may take.
        clock: seconds.
        is_by_count: for a GPU, where the host waits for the device in each step of a
            loop whose length is an operand, and launches nothing meanwhile.

    Attributes:
        most: as given.
        steps: of the next launch.
    """

    def __init__(
        self,
        most: int,
        max_launch_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_by_count: bool = False,
    ) -> None:
        self.is_by_count = is_by_count and most > 1
        self.steps = 1 if math.isfinite(max_launch_s) else most
        self.most = most
        self._max_launch_s = max_launch_s
        self._clock = clock
        self._is_alone = True
        self._read_s = -math.inf

    @property
    def counts(self) -> tuple[int, ...]:
        """Steps of launches, one for each program that decodes."""
        return (self.most, 1) if self.is_by_count else (self.steps,)

    def has_own_program(self, count: int) -> bool:
        """Whether a launch of so many steps has that of `most`."""
        return self.is_by_count and count == self.most

    def now(self) -> float:
        """The clock's time."""
        return self._clock()

    def prefilled(self) -> None:
        """Something else was launched, which the next steps wait for."""
        self._is_alone = False

    def launched(self, count: int, began_s: float) -> Steps:
        """Steps whose call has just returned."""
        is_alone, self._is_alone = self._is_alone, True
        return Steps(count, began_s, self.now(), is_alone)

    def read(self, steps: Steps, *, waited: bool) -> None:
        """Learns from steps whose results have just come.

        Args:
            steps: of the launch.
            waited: they were not there when the host came for them.
        """
        now = self.now()
        begun, self._read_s = max(steps.began_s, self._read_s), now
        if not steps.is_alone:
            return
        # Nobody has waited for what was there, unless the call ran the steps itself.
        took_s = now - begun if waited else steps.returned_s - steps.began_s
        fitting = self._max_launch_s * steps.count / max(took_s, 1e-9)
        self.steps = int(max(1, min(self.most, fitting)))
