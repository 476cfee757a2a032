"""Tools: what a template is told of them, and calls in answers, by OpenAI's client."""

import dataclasses
import json
import pathlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fdjax.serve.tokenizer import FastTokenizer
from fdjax.serve.turns.turns import Turns
from tests.support.conversation import (
    ARGUMENTS,
    CALL,
    MESSAGES,
    SECOND,
    TIME,
    TOOLS,
    WEATHER,
    Conversation,
    calls_of,
)
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    CHAT,
    FOLDER,
    MODEL,
    TEXT,
    TOKENIZER,
    TOKENS,
    served,
)

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


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


async def test_arguments_come_while_they_are_made():
    begun = await Conversation(CALL).begun_arguments(before="東京")
    assert begun and ARGUMENTS.startswith(begun)


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


@pytest.mark.parametrize(("strict", "is_held"), [(True, True), (False, False)])
async def test_strict_tools_are_held_in_what_the_model_calls(
    strict: bool, is_held: bool
):
    """Whole, with the model's own text, and named where the schema is at fault."""
    tool: Any = {
        "type": "function",
        "function": WEATHER["function"] | {"strict": strict},
    }
    wrong = {"properties": {"city": {"type": "no such"}}}
    broken = {"type": "function", "function": tool["function"] | {"parameters": wrong}}
    conversation = Conversation(TEXT)
    with served(conversation.engine, model=conversation.model) as server:
        response = await server.post(PATH, CHAT | {"tools": [tool]})
        refused = await server.post(PATH, CHAT | {"tools": [broken]})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == TEXT
    form = conversation.engine.added[0].request.params.structured_outputs
    assert (form is not None) == is_held
    assert refused.status_code == (400 if is_held else 200)
    if is_held:
        assert refused.json()["error"]["param"] == "tools"


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
