"""What is wrong with the tools of a chat is answered with its place."""

import functools
import json
from typing import Any

import pytest

from tests.support.conversation import TOOLS, WEATHER
from tests.support.http_server import CHAT, served

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


def function(**fields: Any) -> dict[str, Any]:
    given = {"type": "function", "function": {"name": "a"} | fields}
    return {"tools": [WEATHER, given]}


DEEP: Any = functools.reduce(
    lambda one, _: {"type": "object", "properties": {"a": one}}, range(70), {}
)
NAMED = {"type": "function", "function": {"name": "no_such"}}
TURN = {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}
CALLING = {"function": {"name": "a", "arguments": ""}}


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"tools": 3}, "tools", "tools must be a list"),
        ({"tools": [3]}, "tools", "tools[0] is 3"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type is 'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0].function is None"),
        (function(name="a b"), "tools", "tools[1].function.name is 'a b'"),
        (function(name="a" * 129), "tools", "tools[1].function.name is"),
        (function(description=3), "tools", "tools[1].function.description must be"),
        (function(strict="yes"), "tools", "tools[1].function.strict is 'yes'"),
        (function(parameters=[]), "tools", "tools[1].function.parameters is []"),
        (function(parameters={"type": "string"}), "tools", "parameters.type is 'str"),
        (function(parameters=DEEP), "tools", "more than 64 levels"),
        (function(parameters={"title": "\ud800"}), "tools", "half a surrogate"),
        (function(colour="red"), "tools", "tools[1].function.colour is 'red'"),
        (function(name="get_weather"), "tools", "get_weather twice"),
        ({"tools": [WEATHER] * 129}, "tools", "get_weather twice"),
        (
            {"tools": [function(name=f"a{n}")["tools"][1] for n in range(129)]},
            "tools",
            "129 entries; use at most 128",
        ),
        ({"tool_choice": "any"}, "tool_choice", "tool_choice is 'any'"),
        ({"tool_choice": "required", "tools": None}, "tool_choice", "give some"),
        ({"tool_choice": NAMED}, "tool_choice", "get_weather, get_time"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice.function"),
        ({"response_format": {"type": "json_object"}}, "response_format", "'none'"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "'none'"),
        (
            {"tool_choice": "required"}
            | function(parameters={"properties": {"a": {"type": "no such"}}}),
            "tools",
            "no such",
        ),
        (
            {"tool_choice": "required"} | function(parameters={"title": "a" * 40000}),
            "tools",
            "bytes; use at most 32768",
        ),
        (
            {"tool_choice": "required"}
            | function(parameters={"properties": {"a": {"multipleOf": 999961}}}),
            "tools",
            "to compile",
        ),
        ({"messages": [TURN]}, "messages", "function.arguments must be a text"),
        ({"messages": [{"role": "assistant"}]}, "messages", "content is missing"),
        (
            {"messages": [{"role": "user", "tool_calls": [CALLING]}]},
            "messages",
            "for the role assistant",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_call_id": "b"}]},
            "messages",
            "for the role tool",
        ),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(given: dict[str, Any], param: str, said: str):
    with served() as server:
        body = json.dumps(CHAT | {"tools": TOOLS} | given)
        async with server.client as client:
            headers = {"content-type": "application/json"}
            response = await client.post(PATH, content=body, headers=headers)
        fine = await server.post(PATH, CHAT)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"], error["message"]
    assert fine.status_code == 200


async def test_words_of_other_servers():
    with served() as server:
        for given, said in [
            ({"guided_json": {}}, "use structured_outputs"),
            ({"service_tier": "flex"}, "service_tier"),
            ({"reasoning_effort": "huge"}, "reasoning_effort"),
            ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
            ({"chat_template_kwargs": {"a": DEEP}}, "more than 64 levels"),
            ({"chat_template": "{{ 1 }}"}, "not supported"),
        ]:
            error = (await server.post(PATH, CHAT | given)).json()["error"]
            assert error["param"] == next(iter(given))
            assert said in error["message"]
