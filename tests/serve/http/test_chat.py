"""`/v1/chat/completions`: the next turn, whole and streamed."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from fdjax import RequestError
from fdjax.serve.chat_template import ChatText
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, MODEL, TEXT, TOKENIZER, TOKENS, served

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


async def test_a_whole_answer():
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        answer = (await server.post(PATH, CHAT)).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"]["completion_tokens"] == len(TOKENS)
    request = engine.added[0].request
    assert request.prompt == tuple(TOKENIZER.encode("Once"))
    assert request.params.max_tokens is None, "a chat has no limit of its own"


async def test_a_stream_begins_with_the_role():
    with served() as server:
        response = await server.post(PATH, CHAT | {"stream": True, "n": 2})
    lines = response.text.split("\n\n")[:-2]
    choices = [json.loads(line[6:])["choices"][0] for line in lines]
    for index in range(2):
        deltas = [c["delta"] for c in choices if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == TEXT
        reasons = [c["finish_reason"] for c in choices if c["index"] == index]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]


async def test_logprobs():
    with served() as server:
        body = CHAT | {"logprobs": True, "top_logprobs": 3}
        answer = (await server.post(PATH, body)).json()
        without = (await server.post(PATH, CHAT | {"logprobs": True})).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == TEXT
    assert bytes(content[0]["bytes"]) == b" upon"
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5, -2.5]
    assert without["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_parts_and_roles():
    seen: list[Any] = []

    def chat(messages: Sequence[dict[str, Any]], *more: Any) -> ChatText:
        assert more == (None, None, "begun")
        seen.extend(messages)
        return ChatText("a", plain=True)

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": parts},
    ]
    with served(model=dataclasses.replace(MODEL, chat=chat)) as server:
        response = await server.post(PATH, {"messages": messages})
    assert response.status_code == 200
    assert seen == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "ab"},
    ]


async def test_a_template_that_refuses():
    def chat(messages: Sequence[dict[str, Any]], *more: Any) -> ChatText:
        raise RequestError("messages do not suit: roles must alternate")

    with served(model=dataclasses.replace(MODEL, chat=chat)) as server:
        response = await server.post(PATH, CHAT)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert "roles must alternate" in error["message"]


async def test_the_newer_name_of_max_tokens():
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        await server.post(PATH, CHAT | {"max_completion_tokens": 2})
        refused = await server.post(PATH, CHAT | {"max_completion_tokens": 0})
    assert engine.added[0].request.params.max_tokens == 2
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_completion_tokens"


async def test_recommended_sampling_fills_what_is_left_open():
    engine = FakeEngine(TOKENS)
    model = dataclasses.replace(MODEL, sampling={"temperature": 0.25, "top_k": 9})
    with served(engine, model=model) as server:
        await server.post(PATH, CHAT | {"top_k": 3})
    params = engine.added[0].request.params
    assert (params.temperature, params.top_k) == (0.25, 3)
