"""From what launches sampled to increments of requests."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from fdjax.engine.job import Job
from fdjax.engine.request import Increment, Logprob
from fdjax.generate.sampling import Sampled
from fdjax.generate.stopping import FinishReason


@dataclass(frozen=True)
class Launch:
    """Tokens on their way from the device.

    Attributes:
        sampled: of one step, `[B, ...]`, or of several, `[num_steps, B, ...]`.
        columns: the jobs it holds tokens of, and where along `B`.
        stacked: it is of several steps.
    """

    sampled: Sampled
    columns: tuple[tuple[Job, int], ...]
    stacked: bool

    def start_copy(self) -> "Launch":
        """Asks for the copy to the host, without waiting for it."""
        for leaf in jax.tree.leaves(self.sampled):
            leaf.copy_to_host_async()
        return self

    def read(self) -> Iterator[tuple[Job, Increment]]:
        """Waits for the tokens; jobs that ended before have none."""
        host = jax.device_get(self.sampled)
        if not self.stacked:
            host = jax.tree.map(lambda leaf: leaf[None], host)
        for job, column in self.columns:
            if not job.ended:
                yield job, _increment(job, column, host)


def _increment(job: Job, column: int, host: Sampled) -> Increment:
    codes = np.asarray(host.finished)[:, column]
    ended = np.flatnonzero(codes)
    count = int(ended[0]) + 1 if ended.size else len(codes)
    return Increment(
        index=job.request.index,
        token_ids=[int(token) for token in np.asarray(host.tokens)[:count, column]],
        logprobs=_logprobs(host, column, count, job.request.params.logprobs),
        finish_reason=FinishReason(int(codes[ended[0]])) if ended.size else None,
    )


def _logprobs(
    host: Sampled, column: int, count: int, wanted: int | None
) -> list[Logprob] | None:
    if wanted is None or host.logprobs is None:
        return None
    chosen, ids, values = (
        np.asarray(leaf)[:count, column]
        for leaf in (host.logprobs, host.top_ids, host.top_logprobs)
    )
    return [
        Logprob(
            float(chosen[step]),
            {
                int(token): float(value)
                for token, value in zip(
                    ids[step][:wanted], values[step][:wanted], strict=True
                )
            },
        )
        for step in range(count)
    ]
