"""`PooledPrompt`: the vector of a sequence's prompt, on its way to the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fdjax.engine.awaited import Awaited
from fdjax.engine.budget import Timed
from fdjax.engine.request import Embedded, Increment
from fdjax.generate.pooled_states import PooledStates
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.stopping import FinishReason

if TYPE_CHECKING:
    from fdjax.engine.sequence import EngineSequence


class PooledPrompt:
    """Gathers the states of a prompt while it is computed.

    Args:
        num_tokens: of the prompt.
        params: what to make of them.
    """

    def __init__(self, num_tokens: int, params: PoolingParams) -> None:
        self._num_tokens = num_tokens
        self._params = params
        self._pieces: list[tuple[PooledStates, int]] = []

    @property
    def reads_all(self) -> bool:
        """Every token's state counts, also of those that were computed before."""
        return self._params.pooling == "mean"

    def add(self, states: PooledStates, row: int) -> None:
        """Takes the states of the next tokens, which are a row of some."""
        self._pieces.append((states, row))

    def wait(self) -> None:
        """The prompt will be computed anew."""
        self._pieces.clear()

    def vector(self) -> np.ndarray:
        """The vector, float32; waits for the states."""
        states, row = self._pieces[-1]
        whole = np.asarray(states.last)[row].astype(np.float64)
        if self.reads_all:
            sums = [np.asarray(states.sums)[row] for states, row in self._pieces]
            whole = np.sum(sums, axis=0, dtype=np.float64) / self._num_tokens
        kept = whole[: self._params.dimensions]
        if self._params.normalize:
            # What has no length has no direction; it stays what it is.
            kept = kept / (np.linalg.norm(kept) or 1.0)
        return kept.astype(np.float32)


@dataclass(frozen=True)
class AwaitedStates(Awaited):
    """States on their way from the device, as `AwaitedTokens` is for tokens.

    Attributes:
        states: of prompts.
        sequences: whose prompts they complete.
        timed: the call.
    """

    states: PooledStates
    sequences: "Sequence[EngineSequence]"
    timed: Timed | None = None

    steps = None

    @property
    def arrays(self) -> PooledStates:
        """The states."""
        return self.states

    def read(self) -> "Iterator[tuple[EngineSequence, Increment]]":
        """Waits for them; sequences that ended before have nothing."""
        for sequence in self.sequences:
            if sequence.ended or sequence.pooled is None:
                continue
            vector, reason = sequence.pooled.vector(), FinishReason.STOP
            if not np.isfinite(vector).all():
                reason = FinishReason.NON_FINITE
            yield (
                sequence,
                Embedded(sequence.request.index, [], None, reason, embedding=vector),
            )
