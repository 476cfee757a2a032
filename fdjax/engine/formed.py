"""`FormedSequences`: those with a matcher, which cannot be launched ahead."""

from fdjax.engine.sequence import EngineSequence
from fdjax.generate.stopping import FinishReason


class FormedSequences:
    """Few among many: so that a step need not ask every sequence whether it is one."""

    def __init__(self) -> None:
        self._sequences: list[EngineSequence] = []

    def add(self, sequence: EngineSequence) -> None:
        """Takes a sequence that runs now, if it has a matcher."""
        if sequence.matcher is not None:
            self._sequences.append(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Forgets a sequence that runs no more, and waits for nothing."""
        if sequence in self._sequences:
            self._sequences.remove(sequence)

    def settle(self, *, wait: bool) -> list[tuple[EngineSequence, FinishReason]]:
        """Lets sequences go on whose matchers know what may follow the last token.

        Args:
            wait: for those that do not know it yet; else they are left as they are.

        Returns:
            Sequences that nothing may follow, and why; somebody ends them.
        """
        ended: list[tuple[EngineSequence, FinishReason]] = []
        for sequence in self._sequences:
            if sequence.matcher is None or not (sequence.held and sequence.is_read):
                continue
            if wait or sequence.matcher.is_ready:
                sequence.held = False
                reason = sequence.matcher.finish_reason
                if reason != FinishReason.RUNNING:
                    ended.append((sequence, reason))
        return ended
