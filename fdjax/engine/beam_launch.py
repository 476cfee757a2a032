"""`BeamLaunch`: a step of a beam search on its way from the device."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax

from fdjax.engine.awaited import Awaited
from fdjax.engine.request import Found, Increment
from fdjax.engine.results import ending
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamStep
from fdjax.generate.packed import Packed, unpacked
from fdjax.generate.stopping import FinishReason


@dataclass(frozen=True)
class BeamLaunch(Awaited):
    """A step of a search on its way from the device, as `Launch` is for rows.

    Attributes:
        sequence: the search.
        step: what is said of all searches of the call.
        groups: which of them are this one's.
        stop_ids: tokens that end its beams.
    """

    sequence: EngineSequence
    step: Packed[BeamStep]
    groups: slice
    stop_ids: set[int]

    steps = timed = None

    @property
    def arrays(self) -> Packed[BeamStep]:
        """The step."""
        return self.step

    def read(self) -> Iterator[tuple[EngineSequence, Increment]]:
        """Waits for it; something comes of the last one, or of all if asked for."""
        told, sequence = jax.device_get(self.step), self.sequence
        if sequence.ended or sequence.group is None:
            return
        step = unpacked(told.rows(self.groups))
        group, index = sequence.group, sequence.request.index
        group.take(step, self.stop_ids)
        codes = {FinishReason(code) for code in step.finished.tolist()}
        if FinishReason.NON_FINITE in codes:
            yield sequence, ending(sequence.request, FinishReason.NON_FINITE)
        elif FinishReason.RUNNING not in codes:
            found = group.found(step, self.stop_ids)
            tokens = found[0].token_ids if found else []
            reason = found[0].finish_reason if found else FinishReason.LENGTH
            logprobs = found[0].logprobs if found else None
            if group.params.logprobs is not None:
                logprobs = logprobs or []
            yield sequence, Found(index, tokens, logprobs, reason, hypotheses=found)
        elif group.params.stream_best and (best := group.best(step, self.stop_ids)):
            yield sequence, Found(index, [], None, None, hypotheses=best)
