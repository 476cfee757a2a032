"""Calls that the shipped model, which cannot call, is held to, by OpenAI's client."""

import json
import pathlib
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest

from fdjax import LLM
from fdjax.serve.http.wiring import application
from tests.support.http_server import listening

pytestmark = pytest.mark.anyio

ROOT = pathlib.Path(__file__).parents[3]
MESSAGES: Any = [{"role": "user", "content": "Once"}]


def tool(name: str, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool("walk", way={"enum": ["north", "south"]}, steps={"enum": [1, 2]}),
    tool("wait"),
]


@pytest.fixture
async def client(llm: LLM) -> AsyncGenerator[openai.AsyncOpenAI]:
    app, running = application(
        llm.loaded, names=["tales"], sampling={"temperature": 0.8}
    )
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            yield client
    running.close()


def check(call: Any, *, names: set[str]) -> None:
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    if call.function.name == "walk":
        assert {*arguments} == {"way", "steps"}
        assert arguments["way"] in ("north", "south") and arguments["steps"] in (1, 2)
    else:
        assert arguments == {}


def arguments_of(answer: Any) -> list[str]:
    calls = [sample.message.tool_calls[0] for sample in answer.choices]
    return [call.function.arguments for call in calls]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"walk", "wait"}),
        ({"type": "function", "function": {"name": "walk"}}, {"walk"}),
        ({"type": "function", "function": {"name": "wait"}}, {"wait"}),
    ],
    ids=["required", "walk", "wait"],
)
async def test_calls_suit_their_schemas(
    client: openai.AsyncOpenAI, choice: Any, names: set[str]
):
    asked: Any = {
        "model": "tales",
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "n": 2,
        "seed": 5,
        "stop": ["north", "south", "}"],
    }
    whole = await client.chat.completions.create(**asked)
    async with client.chat.completions.stream(**asked) as stream:
        streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        for sample in answer.choices:
            assert sample.finish_reason == "tool_calls"
            assert sample.message.content in (None, "")
            calls = sample.message.tool_calls or ()
            assert len(calls) == 1
            check(calls[0], names=names)
    assert arguments_of(whole) == arguments_of(streamed)


async def test_several_calls(client: openai.AsyncOpenAI):
    answer = await client.chat.completions.create(
        model="tales", messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=1
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    for call in calls[:-1]:  # the last one may be cut
        check(call, names={"walk", "wait"})


async def test_the_example_of_the_docs(client: openai.AsyncOpenAI):
    page = (ROOT / "docs" / "tools.md").read_text()
    body = json.loads(page.partition("-d '")[2].partition("}'")[0] + "}")
    answer: Any = await client.post("/chat/completions", body=body, cast_to=object)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "walk"
    assert json.loads(call["function"]["arguments"])["way"] in ("north", "south")
