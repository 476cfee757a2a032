"""All that a step has made, as one message."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from fdjax.engine.request import (
    Embedded,
    Found,
    FoundOutput,
    Hypothesis,
    Increment,
    Logprob,
    Tried,
)
from fdjax.generate.stopping import FinishReason
from fdjax.serve.apart.wire import Message

STEP = "step"

# In place of a reason: there is none; or the increment is one of those with more; or
# the count is not of tokens that follow, but of those that beams have got.
_NONE, _DETAILED, _TRIED = 255, 254, 253
_REASONS = {_NONE: None} | {int(reason): reason for reason in FinishReason}

type Logprobs = list[Logprob | None] | list[Logprob] | None


def step(items: Sequence[tuple[int, Increment]], **fields: Any) -> Message:
    """The message of what a step has made.

    Plain increments, and those of the steps of searches, are rows of columns, which
    cost a tenth of objects; those with log-probabilities, hypotheses or a vector are
    objects of JSON, in their places.

    Args:
        items: the name of a sample, and what came of it.
        fields: what else is told with it.
    """
    names, indices, counts = array("Q"), array("I"), array("I")
    reasons, tokens, vectors = array("B"), array("I"), array("f")
    detailed: list[Any] = []
    for name, increment in items:
        names.append(name)
        indices.append(increment.index)
        if _is_plain(increment):
            counts.append(len(increment.token_ids))
            reasons.append(_code(increment))
            tokens.extend(increment.token_ids)
        elif isinstance(increment, Tried):
            counts.append(increment.num_tokens)
            reasons.append(_TRIED)
        else:
            counts.append(0)
            reasons.append(_DETAILED)
            detailed.append(_told(increment, vectors))
    columns = (names, indices, counts, reasons, tokens, vectors)
    return Message(STEP, {**fields, "detailed": detailed}, columns)


def increments(message: Message) -> Iterator[tuple[int, Increment]]:
    """What `step` was given."""
    names, indices, counts, reasons, tokens, vectors = message.columns
    token_ids = cast("list[int]", tokens.tolist())
    detailed = iter(message.fields["detailed"])
    floats, begin = np.asarray(vectors), 0
    rows = zip(names, indices, counts, reasons, strict=True)
    for name, index, count, reason in cast("Iterator[tuple[int, int, int, int]]", rows):
        if reason == _DETAILED:
            yield name, _heard(index, next(detailed), floats)
        elif reason == _TRIED:
            yield name, Tried(index, [], None, None, num_tokens=count)
        else:
            end = begin + count
            ids = token_ids[begin:end]
            yield name, Increment(index, ids, None, _REASONS[reason])
            begin = end


def _is_plain(increment: Increment) -> bool:
    return (
        type(increment) is Increment
        and increment.logprobs is None
        and increment.prompt_logprobs is None
    )


def _code(increment: Increment) -> int:
    reason = increment.finish_reason
    return _NONE if reason is None else reason


def _told(increment: Increment, vectors: "array[float]") -> dict[str, Any]:
    """One with more than tokens, as JSON; its vector goes behind others."""
    told: dict[str, Any] = {
        "token_ids": increment.token_ids,
        "logprobs": _logprobs_told(increment.logprobs),
        "finish_reason": _code(increment),
    }
    if increment.prompt_logprobs is not None:
        told["prompt_logprobs"] = _logprobs_told(increment.prompt_logprobs)
    match increment:
        case Found():
            told["hypotheses"] = [_hypothesis_told(h) for h in increment.hypotheses]
        case FoundOutput():
            told["score"] = increment.score
        case Embedded():
            told["vector"] = (len(vectors), len(increment.embedding))
            vectors.frombytes(increment.embedding.astype(np.float32).tobytes())
        case _:
            pass
    return told


def _heard(index: int, told: dict[str, Any], vectors: np.ndarray) -> Increment:
    common: dict[str, Any] = {
        "index": index,
        "token_ids": told["token_ids"],
        "logprobs": _logprobs_heard(told["logprobs"]),
        "finish_reason": _REASONS[told["finish_reason"]],
        "prompt_logprobs": _logprobs_heard(told.get("prompt_logprobs")),
    }
    if "hypotheses" in told:
        found = [_hypothesis_heard(one) for one in told["hypotheses"]]
        return Found(**common, hypotheses=found)
    if "score" in told:
        return FoundOutput(**common, score=told["score"])
    if "vector" in told:
        begin, count = told["vector"]
        return Embedded(**common, embedding=vectors[begin : begin + count].copy())
    return Increment(**common)


def _hypothesis_told(one: Hypothesis) -> list[Any]:
    logprobs = _logprobs_told(one.logprobs)
    scores = (one.score, one.cumulative_logprob)
    return [one.token_ids, *scores, one.finish_reason, logprobs]


def _hypothesis_heard(told: list[Any]) -> Hypothesis:
    token_ids, score, total, reason, logprobs = told
    return Hypothesis(
        token_ids, score, total, FinishReason(reason), _logprobs_heard(logprobs)
    )


def _logprobs_told(logprobs: Logprobs) -> list[Any] | None:
    if logprobs is None:
        return None
    return [
        None if one is None else (one.logprob, [*one.top], [*one.top.values()])
        for one in logprobs
    ]


def _logprobs_heard(told: list[Any] | None) -> Any:
    if told is None:
        return None
    return [
        None if one is None else Logprob(one[0], dict(zip(one[1], one[2], strict=True)))
        for one in told
    ]
