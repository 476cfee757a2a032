"""What a step has made, from one process to the other."""

import math

import numpy as np
import pytest

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
from fdjax.serve.apart.increments import increments, step
from fdjax.serve.apart.wire import Messages

LOGPROBS = [Logprob(-0.1, {3: -0.1, 9: -math.inf}), Logprob(-2.5, {})]
BEST = Hypothesis([1, 2], -0.5, -1.0, FinishReason.LENGTH, LOGPROBS)
VECTOR = np.arange(5, dtype=np.float32) / 3


@pytest.mark.parametrize(
    "one",
    [
        Increment(0, [5], None, None),
        Increment(3, [], None, FinishReason.NON_FINITE),
        Increment(1, [7, 8, 4_000_000_000], None, FinishReason.STOP),
        Increment(0, [7, 8], LOGPROBS, None),
        Increment(0, [7], None, None, [None, *LOGPROBS]),
        Found(0, [], None, None, hypotheses=[BEST]),
        Found(0, [1, 2], LOGPROBS, FinishReason.STOP, hypotheses=[BEST, BEST]),
        Tried(4, [], None, None, num_tokens=12),
        FoundOutput(2, [1], None, FinishReason.LENGTH, score=-0.25),
    ],
)
def test_an_increment_crosses_whole(one: Increment):
    """Among plain ones, in its place."""
    plain = Increment(9, [1], None, None)
    sent = [(1, plain), (2**40, one), (2, plain), (2**40, one), (3, plain)]
    (message,) = Messages().add(step(sent, num_made=7).packed())
    come = list(increments(message))
    assert come == sent
    assert [type(item) for _, item in come] == [type(item) for _, item in sent]
    assert message.fields["num_made"] == 7


def test_vectors_cross_bit_for_bit():
    sent = [
        (name, Embedded(0, [], None, FinishReason.STOP, embedding=vector))
        for name, vector in enumerate((VECTOR, VECTOR[:0], -VECTOR * np.nan))
    ]
    (message,) = Messages().add(step(sent).packed())
    for (_, one), (_, other) in zip(sent, increments(message), strict=True):
        assert isinstance(other, Embedded)
        assert other.embedding.dtype == np.float32
        assert other.embedding.tobytes() == one.embedding.tobytes()
