"""Vectors of texts and how alike they are, in the words of vLLM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fdjax.engine.request import Embedded, Request
from fdjax.engine.runs import Runs
from fdjax.errors import RequestError
from fdjax.serve.outputs import FAILURES, Failure


@dataclass(frozen=True)
class Embedding:
    """The vector of one text.

    Attributes:
        embedding: its numbers; empty where the request failed.
    """

    embedding: list[float]


@dataclass(frozen=True)
class EmbeddingOutput:
    """What came of one prompt.

    Attributes:
        index: place of the prompt in the call.
        prompt: the prompt's text, where it was given as text.
        prompt_token_ids: the prompt's tokens.
        outputs: its vector; one, whatever the name says, as in vLLM.
        num_cached_tokens: tokens of the prompt whose keys and values were there
            already.
        failure: why there is no vector.
    """

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: Embedding
    num_cached_tokens: int | None = None
    failure: Failure | None = None

    finished = True


@dataclass(frozen=True)
class Score:
    """How alike two texts are.

    Attributes:
        score: the cosine of the angle between their vectors, from -1 to 1; NaN where
            one of them failed.
    """

    score: float


@dataclass(frozen=True)
class ScoreOutput:
    """What came of one pair.

    Attributes:
        index: place of the pair in the call.
        outputs: their score; one, whatever the name says, as in vLLM.
        prompt_token_ids: the tokens of both, one text after the other.
    """

    index: int
    outputs: Score
    prompt_token_ids: tuple[int, ...]

    finished = True


def embedded(
    runs: Runs, requests: Sequence[Request], texts: Sequence[str | None]
) -> Iterator[EmbeddingOutput]:
    """Runs requests that pool their prompts; yields outputs as they come.

    Args:
        runs: of the engine.
        requests: checked by it; `index` is the place in the call.
        texts: of the prompts that were given as text.

    Raises:
        QueueFullError: more than may wait.
    """
    for sequence, increment in runs.follow(runs.add(requests)):
        assert isinstance(increment, Embedded)
        index, reason = increment.index, increment.finish_reason
        failure = None if reason is None else FAILURES.get(reason)
        yield EmbeddingOutput(
            index,
            texts[index],
            sequence.request.prompt,
            Embedding([] if failure else increment.embedding.tolist()),
            sequence.num_cached,
            failure,
        )


def pairs_of(firsts: int, seconds: int) -> list[tuple[int, int]]:
    """Which texts are compared: one with each of many, or each with its own.

    Raises:
        RequestError: there are several on both sides, and not as many.
    """
    if firsts == 1:
        return [(0, second) for second in range(seconds)]
    if firsts != seconds:
        raise RequestError(
            f"data_1 has {firsts} texts and data_2 {seconds}; give one and many, or as "
            "many on both sides"
        )
    return [(place, place) for place in range(firsts)]


def score(index: int, one: EmbeddingOutput, other: EmbeddingOutput) -> ScoreOutput:
    """How alike the texts of two vectors of the same size are."""
    cosine = float("nan")
    if not (one.failure or other.failure):
        pair = [np.asarray(each.outputs.embedding) for each in (one, other)]
        lengths = [float(np.linalg.norm(each)) or 1.0 for each in pair]
        cosine = float(pair[0] @ pair[1]) / (lengths[0] * lengths[1])
    tokens = one.prompt_token_ids + other.prompt_token_ids
    return ScoreOutput(index, Score(cosine), tokens)
