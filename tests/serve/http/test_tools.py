"""Tools: what a template is told of them, and calls in answers, by OpenAI's client."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai
import pytest

from fdjax.serve.chat_template import ChatText
from fdjax.serve.http.server import ServedModel
from fdjax.serve.tokenizer import FastTokenizer
from fdjax.serve.turns.turns import Turns
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    CHAT,
    FOLDER,
    MODEL,
    TEXT,
    TOKENIZER,
    TOKENS,
    listening,
    served,
)

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
MESSAGES: Any = CHAT["messages"]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
ARGUMENTS = '{"city": "Łódź, \\"東京\\"", "a": [1, {"b": "}\\n</tool_call>"}]}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>' % ARGUMENTS  # noqa: UP031  (braces)
SECOND = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


class Conversation:
    """A server that says one text, and what its template was given."""

    def __init__(
        self, text: str, *, per_step: int = 1, model: ServedModel = MODEL
    ) -> None:
        self.engine = FakeEngine(
            TOKENIZER.encode_plain(text), per_step=per_step, max_model_len=10**6
        )
        self.messages: Sequence[dict[str, Any]] = ()
        self.tools: Any = None
        self.options: Any = None
        self.prompt = "Once"
        self.model = dataclasses.replace(model, chat=self._chat)

    def _chat(
        self, messages: Sequence[dict[str, Any]], tools: Any, options: Any
    ) -> ChatText:
        self.messages, self.tools, self.options = messages, tools, options
        return ChatText(self.prompt, plain=False)

    async def answer(self, **fields: Any) -> dict[str, Any]:
        """The one choice, whole."""
        async with self._client() as client:
            answer = await client.chat.completions.create(**_defaults(fields))
        return answer.choices[0].to_dict()

    async def streamed(self, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
        """The one choice, put together by the client; and the deltas."""
        deltas: list[Any] = []
        async with (
            self._client() as client,
            client.chat.completions.stream(**_defaults(fields)) as stream,
        ):
            async for event in stream:
                if event.type == "chunk":
                    deltas += [choice.delta for choice in event.chunk.choices]
            whole = await stream.get_final_completion()
        return whole.choices[0].to_dict(), deltas

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncGenerator[openai.AsyncOpenAI]:
        with (
            served(self.engine, model=self.model) as server,
            listening(server.app) as port,
        ):
            url = f"http://127.0.0.1:{port}/v1"
            options: Any = {"base_url": url, "api_key": "none", "max_retries": 0}
            async with openai.AsyncOpenAI(**options) as client:
                yield client


def _defaults(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tales", "messages": MESSAGES, "tools": TOOLS} | fields


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and arguments."""
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions]


@pytest.mark.parametrize("per_step", [1, 3, 1000])
async def test_a_call_whole_and_streamed(per_step: int):
    text = f"Let me see.\n\n{CALL}\n{SECOND}"
    whole = await Conversation(text, per_step=per_step).answer()
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Let me see."
    assert calls_of(whole) == [("get_weather", ARGUMENTS), ("get_time", "{}")]
    ids = [call["id"] for call in whole["message"]["tool_calls"]]
    assert len({*ids}) == 2 and all(name.startswith("call_") for name in ids)

    streamed, deltas = await Conversation(text, per_step=per_step).streamed()
    assert streamed["finish_reason"] == "tool_calls"
    assert streamed["message"]["content"] == "Let me see."
    assert calls_of(streamed) == calls_of(whole)
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    assert all(len(delta.tool_calls or ()) <= 1 for delta in deltas)
    named = [piece for piece in pieces if piece.function.name]
    assert [piece.index for piece in named] == [0, 1]
    assert all(piece.id and piece.type == "function" for piece in named)
    if per_step == 1:
        assert len(pieces) > 20, "arguments come while they are made"


async def test_a_text_is_a_text():
    conversation = Conversation(TEXT)
    choice = await conversation.answer()
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": TEXT}
    streamed, _ = await Conversation(TEXT).streamed()
    assert streamed["message"]["content"] == TEXT


async def test_what_the_template_is_told():
    conversation = Conversation(TEXT)
    call = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    broken = {"name": "get_time", "arguments": '{"a'}
    calls = [
        {"id": "call_1", "type": "function", "function": call},
        {"id": "call_2", "type": "function", "function": broken},
    ]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]
    await conversation.answer(messages=messages)
    loaded = [
        calls[0] | {"function": call | {"arguments": {"city": "Rome"}}},
        calls[1],
    ]
    assert conversation.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": loaded},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]
    empty = {"type": "object", "properties": {}}
    time = {"type": "function", "function": TIME["function"] | {"parameters": empty}}
    assert conversation.tools == [WEATHER, time]


@pytest.mark.parametrize("depth", [65, 900, 100_000])
async def test_arguments_too_deep_for_a_template_stay_text(depth: int):
    conversation = Conversation(TEXT)
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = {"function": {"name": "a", "arguments": arguments}}
    turn = {"role": "assistant", "tool_calls": [call]}
    with served(FakeEngine(TOKENS), model=conversation.model) as server:
        response = await server.post(PATH, {"messages": [turn]})
    if depth == 65:
        assert response.status_code == 200
        (told,) = conversation.messages[0]["tool_calls"]
        assert told["function"]["arguments"] == arguments
    else:
        assert response.status_code == 400, "it is too long for the model"


async def test_none_tells_the_model_of_no_tools():
    conversation = Conversation(CALL)
    choice = await conversation.answer(tool_choice="none")
    assert conversation.tools is None
    assert choice["message"]["content"] == CALL


async def test_one_call_where_none_may_be_beside_it():
    conversation = Conversation(CALL + SECOND)
    choice = await conversation.answer(parallel_tool_calls=False)
    assert calls_of(choice) == [("get_weather", ARGUMENTS)]
    assert choice["finish_reason"] == "tool_calls"
    streamed, _ = await Conversation(CALL + SECOND).streamed(parallel_tool_calls=False)
    assert calls_of(streamed) == calls_of(choice)


@pytest.mark.parametrize("stop", ["city", '"', "\n", "\n</tool_call>", "}"])
async def test_a_stop_string_is_for_content(stop: str):
    choice = await Conversation(f"Well{CALL}").answer(stop=[stop])
    assert calls_of(choice) == [("get_weather", ARGUMENTS)]
    choice = await Conversation(f"Well, {stop}. {CALL}").answer(stop=[stop])
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] in ("Well, ", "Well,")


async def test_content_that_could_become_a_stop_string():
    choice = await Conversation(f"Well{CALL} So").answer(stop=["Well, no", "Some"])
    assert choice["message"]["content"] == "WellSo"
    assert calls_of(choice) == [("get_weather", ARGUMENTS)]


async def test_arguments_cut_short():
    num_tokens = len(TOKENIZER.encode_plain(CALL[:60]))
    choice = await Conversation(CALL).answer(max_tokens=num_tokens)
    ((_, arguments),) = calls_of(choice)
    assert ARGUMENTS.startswith(arguments) and arguments
    assert choice["finish_reason"] == "length"


async def test_log_probabilities_are_those_of_all_tokens():
    choice = await Conversation(CALL).answer(logprobs=True)
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(TOKENIZER.encode_plain(CALL))
    _, deltas = await Conversation(CALL).streamed(logprobs=True)
    assert deltas


@pytest.fixture
async def mistral(tmp_path: pathlib.Path) -> AsyncGenerator[FastTokenizer]:
    """The shipped tokenizer, with Mistral's markers as special tokens."""
    content = json.loads((FOLDER / "tokenizer.json").read_text())
    like = content["added_tokens"][0]
    for place, marker in enumerate(("[TOOL_CALLS]", "[ARGS]"), start=4096):
        content["added_tokens"].append(like | {"id": place, "content": marker})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    yield FastTokenizer(path)


async def test_markers_that_are_special_tokens(mistral: FastTokenizer):
    arguments = '{"city": "Rome"}'
    text = f" Hm.[TOOL_CALLS]get_weather[ARGS]{arguments}[TOOL_CALLS]get_time[ARGS]{{}}"
    tokens = mistral.encode_plain(text)
    assert tokens.count(4096) == 2 and "[" not in mistral.decode(tokens)
    engine = FakeEngine([*tokens, 0], max_model_len=10**6)
    turns = Turns(mistral, tool_call_parser="mistral")
    model = dataclasses.replace(MODEL, turns=turns)
    with served(engine, model=model, tokenizer=mistral) as server:
        answer = (await server.post(PATH, CHAT | {"tools": TOOLS})).json()
    (choice,) = answer["choices"]
    assert calls_of(choice) == [("get_weather", arguments), ("get_time", "{}")]
    assert choice["message"]["content"].strip() == "Hm."
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert all(len(name) == 9 and name.isalnum() for name in ids)


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


async def test_a_template_that_knows_no_calls():
    model = dataclasses.replace(MODEL, turns=Turns(TOKENIZER))
    with served(model=model) as server:
        refused = await server.post(PATH, CHAT | {"tools": TOOLS})
        none = CHAT | {"tools": TOOLS, "tool_choice": "none"}
        taken = await server.post(PATH, none)
    assert refused.status_code == 400
    assert "--tool-call-parser" in refused.json()["error"]["message"]
    assert taken.json()["choices"][0]["message"]["content"] == TEXT


async def test_tools_are_tokenised_too():
    conversation = Conversation(TEXT)
    with served(FakeEngine(TOKENS), model=conversation.model) as server:
        await server.post("/tokenize", {"messages": MESSAGES, "tools": [WEATHER]})
        many = {"messages": MESSAGES, "tools": [WEATHER] * 2}
        assert (await server.post("/tokenize", many)).status_code == 400
    assert conversation.tools == [WEATHER]


REASONING = dataclasses.replace(
    MODEL,
    turns=Turns(TOKENIZER, tool_call_parser="hermes", reasoning_parser="qwen3"),
)


async def test_reasoning_beside_a_call():
    text = f"<think>\nHm, so.\n</think>\n\nYes.{CALL}"
    conversation = Conversation(text, model=REASONING)
    whole = await conversation.answer(
        reasoning_effort="none",
        metadata={"who": "me"},
        service_tier="auto",
        extra_body={"chat_template_kwargs": {"style": "kind"}},
        stop=["so"],
    )
    assert whole["message"]["reasoning"] == "Hm, so."
    assert whole["message"]["content"] == "Yes."
    assert calls_of(whole) == [("get_weather", ARGUMENTS)]
    assert conversation.options == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "style": "kind",
    }
    _, deltas = await Conversation(text, model=REASONING).streamed()
    pieces = [delta.to_dict().get("reasoning", "") for delta in deltas]
    assert "".join(pieces) == "Hm, so." and len([*filter(None, pieces)]) > 1
    assert "".join(delta.content or "" for delta in deltas) == "Yes."


async def test_reasoning_without_tools():
    conversation = Conversation("<think>Hm.</think>Yes.", model=REASONING)
    turn = {"role": "assistant", "content": "No.", "reasoning": "Well."}
    choice = await conversation.answer(
        tools=openai.NOT_GIVEN, messages=[*MESSAGES, turn]
    )
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning": "Hm.",
    }
    assert choice["finish_reason"] == "stop"
    assert conversation.messages[1] == turn | {"reasoning_content": "Well."}


@pytest.mark.parametrize(("prompt", "after"), [("Q", "</think>"), ("</think>", None)])
async def test_a_form_begins_after_reasoning(prompt: str, after: str | None):
    conversation = Conversation(TEXT, model=REASONING)
    conversation.prompt = prompt
    for form in (
        {"tool_choice": "required"},
        {"tools": None, "response_format": {"type": "json_object"}},
    ):
        with served(conversation.engine, model=conversation.model) as server:
            body = CHAT | {"tools": TOOLS} | form
            assert (await server.post(PATH, body)).status_code == 200
        wanted = conversation.engine.added[-1].request.params.structured_outputs
        assert wanted is not None and wanted.after == after


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
