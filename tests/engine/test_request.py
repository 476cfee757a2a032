"""Requests are checked against the model before anything runs."""

import pytest

from fdjax import RequestError, SamplingParams
from fdjax.engine.engine import Engine

LIMIT, VOCABULARY = 32, 131


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 7 is empty"),
        ([1] * LIMIT, f"prompt 7 has {LIMIT} tokens, but max_model_len is {LIMIT}"),
        ([1, VOCABULARY], f"token {VOCABULARY}, but the vocabulary has {VOCABULARY}"),
        ([-1], "names token -1"),
    ],
)
def test_prompts_that_cannot_be_served(engine: Engine, prompt: list[int], message: str):
    with pytest.raises(RequestError, match=message):
        engine.request(7, prompt, SamplingParams())


def test_stop_tokens_must_exist(engine: Engine):
    with pytest.raises(RequestError, match=f"stop_token_ids names token {VOCABULARY}"):
        engine.request(0, [1], SamplingParams(stop_token_ids=[VOCABULARY]))


@pytest.mark.parametrize(
    ("wanted", "length", "allowed"),
    [(4, 10, 4), (100, 10, LIMIT - 10), (None, 10, LIMIT - 10), (5, LIMIT - 1, 1)],
)
def test_output_ends_where_the_model_ends(
    engine: Engine, wanted: int | None, length: int, allowed: int
):
    request = engine.request(0, [1] * length, SamplingParams(max_tokens=wanted))
    assert request.max_tokens == allowed
    assert request.num_kv_tokens == length + allowed - 1
