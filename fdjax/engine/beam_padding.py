"""`BeamPadding`: searches that have ended, which fill up the calls of others."""

from collections import OrderedDict
from collections.abc import Sequence

import jax
import numpy as np

from fdjax.engine.beam_programs import Alike
from fdjax.engine.search import Search
from fdjax.generate.beam_run import BeamRun
from fdjax.generate.packed import Packed, unpacked
from fdjax.generate.stopping import FinishReason

_MAX_KINDS = 8

type Runs = Sequence[Packed[BeamRun]]


class BeamPadding:
    """What such searches are on the device. They stand still, and have no pages."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Alike, list[Packed[BeamRun]]] = OrderedDict()

    def take(self, search: Search, count: int) -> Runs:
        """So many, to be donated to a call like those of the others.

        Args:
            search: of the call.
            count: how many are wanted; 0 where the search is of no kind.
        """
        if not count:
            return ()
        assert search.kind is not None and search.run is not None
        kept = self._kept.setdefault(search.kind, [])
        self._kept.move_to_end(search.kind)
        while len(self._kept) > _MAX_KINDS:
            self._kept.popitem(last=False)
        while len(kept) < count:
            kept.append(_ended(search.run))
        return [kept.pop() for _ in range(count)]

    def give(self, search: Search, runs: Runs) -> None:
        """What the call has made of them, for the next one."""
        if runs:
            assert search.kind is not None
            self._kept[search.kind] += runs


def _ended(like: Packed[BeamRun]) -> Packed[BeamRun]:
    """A search whose only token, which none of its beams has a page for, ended it."""
    packed = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), like)
    progress = unpacked(packed).progress  # views into the words
    np.asarray(progress.generated)[:] = 1
    np.asarray(progress.finished)[:] = FinishReason.STOP
    return jax.device_put(packed)
