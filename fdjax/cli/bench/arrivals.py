"""When requests come and how long they are: Poisson, all at once, or as in a trace."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Arrival:
    """One request before it is sent.

    Attributes:
        at_s: when it comes, in seconds from the start.
        input_tokens: of its prompt.
        output_tokens: to ask for.
    """

    at_s: float
    input_tokens: int
    output_tokens: int


def alike(count: int, *, input_tokens: int, output_tokens: int) -> list[Arrival]:
    """Requests of one size that come at once."""
    return [Arrival(0.0, input_tokens, output_tokens)] * count


def poisson(
    arrivals: Sequence[Arrival], random: np.random.Generator, *, rate: float
) -> list[Arrival]:
    """The same requests as a Poisson process, the first of them at 0.

    Args:
        arrivals: whose sizes to keep.
        random: what gaps are drawn from.
        rate: requests a second, in the mean.
    """
    gaps = random.exponential(1 / rate, len(arrivals))
    times = np.cumsum(gaps) - gaps[:1]
    return [
        dataclasses.replace(one, at_s=float(at))
        for one, at in zip(arrivals, times, strict=True)
    ]


def scaled(
    arrivals: Sequence[Arrival], *, speed: float, length_scale: float
) -> list[Arrival]:
    """The same requests faster or slower, longer or shorter.

    Args:
        arrivals: what to change.
        speed: times are divided by it.
        length_scale: token counts are multiplied by it, and rounded; at least 1.
    """
    return [
        Arrival(
            at_s=one.at_s / speed,
            input_tokens=max(1, round(one.input_tokens * length_scale)),
            output_tokens=max(1, round(one.output_tokens * length_scale)),
        )
        for one in arrivals
    ]


def random_prompts(
    lengths: Sequence[int], random: np.random.Generator, *, vocab_size: int
) -> list[list[int]]:
    """Prompts of random token ids below `vocab_size`, one a length."""
    return [random.integers(0, vocab_size, length).tolist() for length in lengths]
