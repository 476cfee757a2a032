"""Reasoning, in a field of its own; by OpenAI's client."""

import dataclasses

import openai
import pytest

from fdjax.serve.turns.turns import Turns
from tests.support.conversation import (
    ARGUMENTS,
    CALL,
    MESSAGES,
    TOOLS,
    Conversation,
    calls_of,
)
from tests.support.http_server import CHAT, MODEL, TEXT, TOKENIZER, served

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
REASONING = dataclasses.replace(
    MODEL,
    turns=Turns(TOKENIZER, tool_call_parser="hermes", reasoning_parser="qwen3"),
)


@pytest.mark.usefixtures("apart")
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
