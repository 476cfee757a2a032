"""`AwaitedBeams`: a step of beam searches on its way from the device."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax

from fdjax.engine.awaited import Awaited
from fdjax.engine.request import Found, Increment, Tried
from fdjax.engine.results import ending
from fdjax.engine.search import Search
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamStep
from fdjax.generate.packed import Packed, unpacked
from fdjax.generate.stopping import FinishReason


@dataclass(frozen=True)
class AwaitedSearch:
    """A search of a launch.

    Attributes:
        sequence: the search.
        first: which of the launch's groups is its first.
        stop_ids: tokens that end its beams.
    """

    sequence: EngineSequence
    first: int
    stop_ids: set[int]


@dataclass(frozen=True)
class AwaitedBeams(Awaited):
    """A step of searches on its way from the device, as `AwaitedTokens` is for rows.

    Attributes:
        searches: those of the call.
        step: what it says of all.
    """

    searches: tuple[AwaitedSearch, ...]
    step: Packed[BeamStep]

    steps = timed = None

    @property
    def arrays(self) -> Packed[BeamStep]:
        """The step."""
        return self.step

    def of_seated(self) -> "AwaitedBeams":
        """Without the searches that have no rows any more: nobody waits for theirs."""
        seated = (one for one in self.searches if one.sequence.row is not None)
        return replace(self, searches=tuple(seated))

    def read(self) -> Iterator[tuple[EngineSequence, Increment]]:
        """Waits for it: what beams have got, and what was found where that is told."""
        step = unpacked(jax.device_get(self.step))
        for one in self.searches:
            if not one.sequence.ended:
                yield from _read(one, one.sequence.search, step)


def _read(
    one: AwaitedSearch, group: Search, step: BeamStep
) -> Iterator[tuple[EngineSequence, Increment]]:
    sequence, index = one.sequence, one.sequence.request.index
    where = step, one.first, one.stop_ids
    group.take(*where)
    if num_tokens := group.untold():
        yield sequence, Tried(index, [], None, None, num_tokens=num_tokens)
    ends = step.finished[one.first : one.first + len(group.traces)]
    codes = {FinishReason(code) for code in ends.tolist()}
    if FinishReason.NON_FINITE in codes:
        yield sequence, ending(sequence.request, FinishReason.NON_FINITE)
    elif FinishReason.RUNNING not in codes:
        found = group.found(*where)
        if not found:
            yield sequence, ending(sequence.request, FinishReason.NOTHING_FOUND)
            return
        best, *_ = found
        yield (
            sequence,
            Found(
                index,
                best.token_ids,
                best.logprobs,
                best.finish_reason,
                hypotheses=found,
            ),
        )
    elif group.params.stream_best and (best := group.best(*where)):
        yield sequence, Found(index, [], None, None, hypotheses=best)
