"""`/v1/completions`: texts continued, whole and streamed."""

import json
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TEXT, TOKENIZER, TOKENS, served

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"


async def complete(engine: FakeEngine | None = None, **fields: Any) -> dict[str, Any]:
    with served(engine, allow_priority=True) as server:
        response = await server.post(PATH, PROMPT | fields)
        assert response.status_code == 200, response.text
        return response.json()


async def events(**fields: Any) -> list[dict[str, Any]]:
    with served() as server:
        response = await server.post(PATH, PROMPT | {"stream": True} | fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_a_whole_answer():
    answer = await complete()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tales"
    assert answer["choices"] == [
        {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}
    ]
    prompt = len(TOKENIZER.encode("Once"))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(TOKENS),
        "total_tokens": prompt + len(TOKENS),
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_the_limit_ends_it():
    (choice,) = (await complete(max_tokens=2))["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" upon a", "length")


async def test_a_stream_has_the_same_text():
    made = await events()
    assert "".join(event["choices"][0]["text"] for event in made) == TEXT
    reasons = [event["choices"][0]["finish_reason"] for event in made]
    assert reasons == [None] * (len(made) - 1) + ["stop"]
    assert len({event["id"] for event in made}) == 1
    assert "usage" not in made[0]


async def test_a_stream_tells_its_usage_where_asked():
    *made, last = await events(stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in made)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(TOKENS)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_tells_its_usage_always_where_asked(path: str):
    body = PROMPT if path == "/v1/completions" else CHAT
    told = {"include_usage": True, "continuous_usage_stats": True}
    with served() as server:
        whole = (await server.post(path, body)).json()["usage"]
        response = await server.post(
            path, body | {"stream": True, "stream_options": told}
        )
        told["include_usage"] = False
        silent = await server.post(
            path, body | {"stream": True, "stream_options": told}
        )
    lines = response.text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    usages = [json.loads(line.removeprefix("data: "))["usage"] for line in lines]
    counts = [usage["completion_tokens"] for usage in usages]
    assert usages[-1] == usages[-2] == whole
    assert counts == sorted(counts) and {*range(1, len(TOKENS) + 1)} <= {*counts}
    assert '"usage"' not in silent.text


async def test_several_prompts_and_samples():
    engine = FakeEngine(TOKENS)
    answer = await complete(engine, prompt=["Once", [5, 6]], n=2, seed=7)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == len(TOKENIZER.encode("Once")) + 2
    assert answer["usage"]["completion_tokens"] == 4 * len(TOKENS)
    assert [sequence.request.params.seed for sequence in engine.added] == [7, 8, 7, 8]
    assert engine.added[2].request.prompt == (5, 6)


async def test_a_stream_of_several_samples_is_whole_for_each():
    made = await events(n=3)
    texts = ["", "", ""]
    for event in made:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == [TEXT] * 3


@pytest.mark.parametrize("prompt", ["Once", TOKENIZER.encode("Once")])
async def test_echo(prompt: Any):
    answer = await complete(prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == "Once" + TEXT
    made = await events(prompt=prompt, echo=True)
    assert "".join(event["choices"][0]["text"] for event in made) == "Once" + TEXT


async def test_logprobs():
    (choice,) = (await complete(logprobs=2))["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == TEXT
    assert logprobs["token_logprobs"] == [-0.5] * len(TOKENS)
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * len(TOKENS)
    assert logprobs["top_logprobs"][0][" upon"] == -0.5
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert TEXT[offset:].startswith(token)


async def test_streamed_logprobs_are_those_of_the_whole():
    (choice,) = (await complete(logprobs=1))["choices"]
    made = [event["choices"][0]["logprobs"] for event in await events(logprobs=1)]
    for name, whole in choice["logprobs"].items():
        assert [entry for part in made for entry in part[name]] == whole


async def test_stop_strings_over_tokens():
    stopped = await complete(stop=["ime the", "no such"])
    assert stopped["choices"][0]["text"] == " upon a t"
    assert stopped["choices"][0]["finish_reason"] == "stop"
    included = await complete(stop="ime the", include_stop_str_in_output=True)
    assert included["choices"][0]["text"] == " upon a time the"


async def test_every_parameter_reaches_the_engine():
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 1,
        "seed": 3,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "max_tokens": 5,
        "min_tokens": 2,
        "logprobs": 4,
    }
    engine = FakeEngine(TOKENS)
    await complete(
        engine, **given, logit_bias={"12": -3}, priority=2, cache_salt="x", user="me"
    )
    (sequence,) = engine.added
    assert (sequence.origin.priority, sequence.origin.salt) == (2, b"x")
    params = sequence.request.params
    assert params.logit_bias == {12: -3.0}
    assert params.stop_token_ids == (9,)
    del given["stop_token_ids"]
    assert {name: getattr(params, name) for name in given} == given


async def test_null_is_as_good_as_nothing():
    answer = await complete(n=None, stop=None, logit_bias=None, stream=None, seed=None)
    assert answer["choices"][0]["text"] == TEXT
