"""A device that only takes time, in the place of an engine's executor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from fdjax.engine.buckets import Buckets
from fdjax.engine.budget import TokenBudget
from fdjax.engine.executor import AnyAwaited, Executor
from fdjax.engine.pace import Pace
from fdjax.engine.policy import StepPolicy
from fdjax.engine.request import Increment
from fdjax.engine.results import AwaitedTokens
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled
from fdjax.generate.stopping import FinishReason

_NOBODY, _NO_TOP = jnp.zeros(0, jnp.int32), jnp.zeros((0, 0), jnp.int32)
SAMPLED = Sampled(_NOBODY, _NOBODY, None, _NO_TOP, _NO_TOP.astype(jnp.float32))


@dataclass(frozen=True)
class Costs:
    """Milliseconds of a step.

    By default those of Llama-3-8B on an H200, by a log of all steps of 512
    conversations at once and of 20 a second (2026-11-26).

    Attributes:
        step: whatever there is in it.
        row: that decodes, at some 1,200 tokens.
        token: of prompts, padding included.
        pair: of a query of a prompt and a key before it.
        host: from a step's begin to its launch.
    """

    step: float = 3.9
    row: float = 0.058
    token: float = 0.0213
    pair: float = 9.5e-7
    host: float = 4.0


@dataclass
class Clock:
    """Seconds, as far as the simulation has come."""

    now: float = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@dataclass(frozen=True)
class Running(AwaitedTokens):
    """A launch that ends at a known time."""

    end_s: float = 0.0
    clock: Clock = field(default_factory=Clock)

    @property
    def is_ready(self) -> bool:
        """The clock says so."""
        return self.clock.now >= self.end_s


class _NoSearches:
    def batches(self, searches: Any, *, fits: Any) -> Iterator[Any]:
        del searches, fits
        return iter(())


class Device(Executor):
    """An executor that computes nothing.

    Args:
        buckets: sizes of calls.
        policy: of steps.
        costs: how long they take.
        clock: that goes on by what is read.
    """

    def __init__(
        self, buckets: Buckets, policy: StepPolicy, costs: Costs, clock: Clock
    ) -> None:
        self.mixed = True
        self._buckets, self._costs, self.clock = buckets, costs, clock
        self.pace = Pace(1, math.inf, clock)
        self.budget = TokenBudget(buckets.prefills, policy.max_itl_ms, clock)
        self.beams: Any = _NoSearches()
        self._free_s = 0.0

    def extend(
        self, sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
    ) -> list[AnyAwaited]:
        """A step of both."""
        count = len(sequences) + sum(chunk.size for chunk in chunks)
        padded, _ = self._buckets.call_shape(count, len(chunks))
        pairs = sum(chunk.size * (chunk.start + chunk.stop) / 2 for chunk in chunks)
        done = [chunk.sequence for chunk in chunks if chunk.is_last]
        timed = self.budget.launched(padded)
        more = padded - len(sequences)
        return [self._launch([*sequences, *done], len(sequences), more, pairs, timed)]

    def decode(
        self, sequences: Sequence[EngineSequence], **options: Any
    ) -> AwaitedTokens:
        """A step of rows that decode."""
        del options
        return self._launch(sequences, len(sequences), 0, 0.0, None)

    def read(self, launch: AnyAwaited) -> list[tuple[EngineSequence, Increment]]:
        """Lets the time pass until it has ended."""
        assert isinstance(launch, Running)
        waited = not launch.is_ready
        self.clock.now = max(self.clock.now, launch.end_s)
        self.budget.read(launch.timed, waited=waited)
        return [
            (sequence, _one_more(sequence))
            for sequence, _ in launch.columns
            if not sequence.ended
        ]

    def use(self, plan: SamplingPlan) -> None:
        """Nothing is sampled."""

    def move(self, moves: Mapping[int, int]) -> None:
        """Nothing is moved."""

    def exchange(self, source: Sequence[int]) -> None:
        """Rows hold nothing."""

    def _launch(
        self,
        sequences: Sequence[EngineSequence],
        rows: int,
        tokens: int,
        pairs: float,
        timed: Any,
    ) -> AwaitedTokens:
        costs = self._costs
        self.clock.now += costs.host / 1e3
        whole_ms = costs.step + costs.row * rows
        whole_ms += costs.token * tokens + costs.pair * pairs
        self._free_s = max(self._free_s, self.clock.now) + whole_ms / 1e3
        columns = tuple((sequence, 0) for sequence in sequences)
        return Running(SAMPLED, columns, None, timed, self._free_s, self.clock)


def _one_more(sequence: EngineSequence) -> Increment:
    is_last = len(sequence.tokens) + 1 == sequence.limit
    reason = FinishReason.LENGTH if is_last else None
    return Increment(sequence.request.index, [1], None, reason, None)
