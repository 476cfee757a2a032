"""From what launches sampled to increments of requests."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from fdjax.engine.awaited import Awaited
from fdjax.engine.budget import Timed
from fdjax.engine.pace import Steps
from fdjax.engine.request import Found, Increment, Logprob, Request, as_logprobs
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from fdjax.generate.sampling import Sampled
from fdjax.generate.stopping import FinishReason


@dataclass(frozen=True)
class AwaitedTokens(Awaited):
    """Tokens on their way from the device.

    Attributes:
        sampled: of a call with prompts, `[B, ...]`, or of decode steps, `[num_steps, B,
            ...]`.
        columns: the sequences it holds tokens of, and where along `B`.
        steps: those of decode steps.
        timed: a call with prompts.
    """

    sampled: Sampled
    columns: tuple[tuple[EngineSequence, int], ...]
    steps: Steps | None = None
    timed: Timed | None = None

    @property
    def arrays(self) -> Sampled:
        """The tokens."""
        return self.sampled

    def read(self) -> Iterator[tuple[EngineSequence, Increment]]:
        """Waits for the tokens; sequences that ended before have none."""
        host = jax.device_get(self.sampled)
        if self.steps is None:
            host = jax.tree.map(lambda leaf: leaf[None], host)
        # Lists by row: an array's elements one by one cost 5 us a row and step.
        tokens = np.asarray(host.tokens).T.tolist()
        codes = np.asarray(host.finished).T.tolist()
        for sequence, column in self.columns:
            if sequence.ended:
                continue
            ids, row, reason = tokens[column], codes[column], None
            if self.steps is not None:  # it stood still after its part of them
                count = sequence.steps_of(self.steps.count)
                ids, row = ids[:count], row[:count]
            if row[-1]:  # a row that has ended stays so
                ids, reason = _until_end(ids, row)
            logprobs = None
            if host.logprobs is not None:
                logprobs = _logprobs(host, column, len(ids), sequence.request.params)
            of_prompt = None if sequence.scored is None else sequence.scored.take()
            yield (
                sequence,
                Increment(sequence.request.index, ids, logprobs, reason, of_prompt),
            )


def ending(request: Request, reason: FinishReason) -> Increment:
    """The last increment where the end came to be known after the tokens."""
    logprobs = None if request.params.logprobs is None else []
    if request.beams is not None:
        return Found(request.index, [], logprobs, reason)
    return Increment(request.index, [], logprobs, reason)


def _until_end(
    tokens: list[int], codes: list[int]
) -> tuple[list[int], FinishReason | None]:
    """The tokens of a row's steps, up to the step that ends it."""
    last = next(step for step, code in enumerate(codes) if code)
    reason = FinishReason(codes[last])
    has_token = reason != FinishReason.NON_FINITE
    return tokens[: last + has_token], reason


def _logprobs(
    host: Sampled, column: int, count: int, params: SamplingParams
) -> list[Logprob] | None:
    if params.logprobs is None:
        return None
    leaves = (host.logprobs, host.top_ids, host.top_logprobs)
    arrays = (np.asarray(leaf)[:count, column] for leaf in leaves)
    return as_logprobs(*arrays, num_top=params.logprobs)
