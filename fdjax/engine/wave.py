"""A wave: requests that run together, from prompts to the last token."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.request import Increment, Logprob, Request
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled
from fdjax.generate.sampling_state import SamplingState, init_state
from fdjax.generate.stopping import FinishReason


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Operands of one `admit` call, on the host.

    Attributes:
        rows: row of each prompt, `[A]`; `>= B` marks padding.
        tokens: prompts padded on the right, `[A, S]`.
        lengths: tokens of each prompt, `[A]`.
    """

    rows: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray


def page_table(
    pages: Sequence[Sequence[int]], *, num_rows: int, width: int, num_pages: int
) -> np.ndarray:
    """Page ids by row, `[B, W]`; absent pages are `num_pages`."""
    table = np.full((num_rows, width), num_pages, np.int32)
    for row, held in enumerate(pages):
        table[row, : len(held)] = held
    return table


def sampling_state(
    requests: Sequence[Request],
    seeds: Sequence[int],
    *,
    plan: SamplingPlan,
    num_rows: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
) -> SamplingState:
    """The sampling state of a wave, with the limits that really hold."""
    params = [
        dataclasses.replace(
            request.params,
            max_tokens=request.max_tokens,
            min_tokens=min(request.params.min_tokens, request.max_tokens),
        )
        for request in requests
    ]
    return init_state(
        params,
        [request.prompt for request in requests],
        plan=plan,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        default_seeds=seeds,
        num_rows=num_rows,
    )


def prompt_groups(
    requests: Sequence[Request], *, num_rows: int, buckets: Buckets
) -> Iterator[Prompts]:
    """Splits a wave's prompts into calls of like lengths, longest first."""
    order = sorted(range(len(requests)), key=lambda row: -len(requests[row].prompt))
    while order:
        longest = len(requests[order[0]].prompt)
        width = smallest_fitting(buckets.prompts, longest)
        count = min(buckets.prefill_rows(width, num_rows), len(order))
        count = smallest_fitting(buckets.rows, count)
        group, order = order[:count], order[count:]
        yield _pad(requests, group, count=count, width=width, num_rows=num_rows)


def _pad(
    requests: Sequence[Request],
    group: Sequence[int],
    *,
    count: int,
    width: int,
    num_rows: int,
) -> Prompts:
    rows = np.full(count, num_rows, np.int32)
    tokens = np.zeros((count, width), np.int32)
    lengths = np.zeros(count, np.int32)
    for place, row in enumerate(group):
        prompt = requests[row].prompt
        rows[place], lengths[place] = row, len(prompt)
        tokens[place, : len(prompt)] = prompt
    return Prompts(rows, tokens, lengths)


class Reader:
    """Turns what steps sampled into increments; knows which rows still run.

    Args:
        requests: the wave's requests; row `r` is `requests[r]`.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._running = [True] * len(requests)

    @property
    def any_running(self) -> bool:
        """Some row has not finished."""
        return any(self._running)

    def first_tokens(self, rows: np.ndarray, sampled: Sampled) -> Iterator[Increment]:
        """Increments of one `admit` call."""
        host = jax.tree.map(lambda leaf: leaf[None], jax.device_get(sampled))
        for place, row in enumerate(rows):
            if row < len(self._requests):
                yield self._increment(int(row), place, host)

    def next_tokens(self, sampled: Sampled) -> Iterator[Increment]:
        """Increments of one `decode_steps` call."""
        host = jax.device_get(sampled)
        for row in range(len(self._requests)):
            if self._running[row]:
                yield self._increment(row, row, host)

    def _increment(self, row: int, column: int, host: Sampled) -> Increment:
        codes = np.asarray(host.finished)[:, column]
        ended = np.flatnonzero(codes)
        count = int(ended[0]) + 1 if ended.size else len(codes)
        reason = FinishReason(int(codes[ended[0]])) if ended.size else None
        self._running[row] = reason is None
        request = self._requests[row]
        return Increment(
            index=request.index,
            token_ids=[int(token) for token in np.asarray(host.tokens)[:count, column]],
            logprobs=_logprobs(host, column, count, request.params.logprobs),
            finish_reason=reason,
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
