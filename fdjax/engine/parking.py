"""Sequences that wait until somebody takes what they have made."""

from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence
from fdjax.errors import ConfigError


class Parking:
    """Parks sequences: they hold neither a row nor pages, and are in no queue.

    Like those that were put back, they resume with the tokens that they have made.

    Args:
        scheduler: whose sequences they are.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asked: set[EngineSequence] = set()

    @property
    def num_parked(self) -> int:
        """Sequences that are parked."""
        return self._scheduler.away.num_parked

    def ask(self, sequence: EngineSequence) -> None:
        """Has a sequence parked by the next `park`, unless it has ended or is."""
        if not sequence.ended and not self._scheduler.away.is_parked(sequence):
            self._asked.add(sequence)

    def park(self) -> bool:
        """Parks what was asked for; what is on its way will still be read.

        Returns:
            Whether anything was parked.
        """
        parked = [sequence for sequence in self._asked if not sequence.ended]
        for sequence in parked:
            self._scheduler.leave(sequence, parked=True)
        self._asked.clear()
        return bool(parked)

    def resume(self, sequence: EngineSequence) -> None:
        """Puts a sequence back into the queue, if it is parked."""
        self._asked.discard(sequence)
        if self._scheduler.away.is_parked(sequence):
            self._scheduler.leave(sequence, parked=False)
            self._scheduler.come_back()

    def end(self, sequence: EngineSequence) -> None:
        """Ends a sequence, wherever it is."""
        self._asked.discard(sequence)
        if not sequence.ended:
            self._scheduler.end(sequence)

    def check_idle(self, what: str) -> None:
        """Refuses what may not be while sequences wait, run or are parked.

        Args:
            what: is to be.

        Raises:
            ConfigError: some are unfinished.
        """
        if self._scheduler.has_work or self.num_parked:
            raise ConfigError(
                f"{what} between requests, and some are unfinished; let them end, or "
                "abort them"
            )

    def clear(self) -> None:
        """Parks no others."""
        self._asked.clear()
