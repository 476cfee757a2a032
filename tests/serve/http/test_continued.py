"""A chat whose last message goes on, or that begins no answer."""

import dataclasses
from typing import Any

import pytest

from fdjax.serve.turns.turns import Turns
from tests.support.conversation import Conversation
from tests.support.http_server import CHAT, MODEL, TEXT, TOKENIZER, served

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
OPEN = {"continue_final_message": True}
BEGUN = [*CHAT["messages"], {"role": "assistant", "content": "Once"}]
REASONING = dataclasses.replace(
    MODEL, turns=Turns(TOKENIZER, reasoning_parser="deepseek_r1")
)


async def answered(conversation: Conversation, **fields: Any) -> dict[str, Any]:
    """The one choice."""
    with served(conversation.engine, model=conversation.model) as server:
        response = await server.post(PATH, {"messages": BEGUN} | fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "begun"),
        ({"add_generation_prompt": True}, "begun"),
        ({"add_generation_prompt": True, "continue_final_message": False}, "begun"),
        ({"add_generation_prompt": False}, "closed"),
        (OPEN, "open"),
        (OPEN | {"add_generation_prompt": False}, "open"),
    ],
    ids=str,
)
async def test_where_the_prompt_ends(fields: dict[str, Any], end: str):
    conversation = Conversation(TEXT)
    choice = await answered(conversation, **fields)
    assert conversation.end == end
    assert choice["message"] == {"role": "assistant", "content": TEXT}


@pytest.mark.parametrize(
    ("continued", "message"),
    [
        ("Once", {"content": TEXT}),
        ("<think>Hm.</think>Once", {"content": TEXT}),
        ("<think>Once", {"content": "", "reasoning": TEXT}),
    ],
)
async def test_reasoning_that_goes_on_or_has_ended(
    continued: str, message: dict[str, Any]
):
    conversation = Conversation(TEXT, model=REASONING)
    turns = [*CHAT["messages"], {"role": "assistant", "content": continued}]
    choice = await answered(conversation, messages=turns, **OPEN)
    assert choice["message"] == {"role": "assistant"} | message


@pytest.mark.parametrize(
    ("continued", "after"), [("Once", None), ("<think>Once", "</think>")]
)
async def test_a_form_begins_after_the_reasoning_that_goes_on(
    continued: str, after: str | None
):
    conversation = Conversation(TEXT, model=REASONING)
    turns = [*CHAT["messages"], {"role": "assistant", "content": continued}]
    form = {"response_format": {"type": "regex", "regex": "a"}}
    await answered(conversation, messages=turns, **OPEN, **form)
    wanted = conversation.engine.added[0].request.params.structured_outputs
    assert wanted is not None and wanted.after == after


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"add_generation_prompt": True}, "set one of them to false"),
        (CHAT, "of the role user"),
        (
            {
                "messages": [
                    *BEGUN,
                    {
                        "role": "assistant",
                        "content": "Once",
                        "tool_calls": [
                            {
                                "id": "a",
                                "type": "function",
                                "function": {"name": "b", "arguments": "{}"},
                            }
                        ],
                    },
                ]
            },
            "of the role assistant with tool_calls",
        ),
    ],
    ids=str,
)
async def test_what_cannot_go_on(fields: dict[str, Any], said: str):
    with served() as server:
        response = await server.post(PATH, {"messages": BEGUN} | OPEN | fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "continue_final_message"
    assert error["message"].startswith("continue_final_message is true")
    assert said in error["message"]
