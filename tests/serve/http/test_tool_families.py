"""Calls that a model makes by itself, in each family's words, by OpenAI's client."""

import dataclasses
import json

import pytest

from fdjax.serve.turns.families import FAMILIES
from fdjax.serve.turns.turns import Turns
from tests.support.conversation import Conversation, calls_of
from tests.support.http_server import MODEL, TOKENIZER

pytestmark = pytest.mark.anyio

# Quotes, braces, markers and characters of several tokens, where a reader may stumble.
ARGUMENTS = json.dumps(
    {"city": 'Łódź, "東京" 🦊', "a": [1, {"b": "}] [TOOL_CALLS]</tool_call>;"}]},
    ensure_ascii=False,
)
WEATHER = '{"name": "get_weather", "%s": ' + ARGUMENTS.replace("%", "%%") + "}"
TIME = '{"name": "get_time", "%s": {}}'
TEMPLATE_NAMED = "[TOOL_CALLS]name[ARGS]"
SAID = {
    "hermes": (
        "",
        "Let me see.\n<tool_call>\n"
        + WEATHER % "arguments"
        + "\n</tool_call>\n<tool_call>\n"
        + TIME % "arguments"
        + "\n</tool_call>",
    ),
    "llama3_json": ("", WEATHER % "parameters" + "; " + TIME % "parameters"),
    "mistral": (
        "",
        f"Let me see.[TOOL_CALLS] [{WEATHER % 'arguments'}, {TIME % 'arguments'}]",
    ),
    "mistral, named": (
        TEMPLATE_NAMED,
        "Let me see.[TOOL_CALLS]get_weather[ARGS]"
        + ARGUMENTS
        + "[TOOL_CALLS]get_time[ARGS]{}",
    ),
}


def conversation(family: str, *, per_step: int) -> Conversation:
    """A server of a model of that family, which calls both tools."""
    template, text = SAID[family]
    parser = family.partition(",")[0]
    turns = Turns(TOKENIZER, template=template, tool_call_parser=parser)
    model = dataclasses.replace(MODEL, turns=turns)
    return Conversation(text, per_step=per_step, model=model)


def test_every_family_is_tried():
    assert {name.partition(",")[0] for name in SAID} == {*FAMILIES}


@pytest.mark.parametrize("family", SAID)
@pytest.mark.parametrize("per_step", [1, 4, 1000])
async def test_calls_as_the_model_likes(family: str, per_step: int):
    """Whole and in pieces, of which each goes on with the arguments of one call."""
    whole = await conversation(family, per_step=per_step).answer(tool_choice="auto")
    assert calls_of(whole) == [("get_weather", ARGUMENTS), ("get_time", "{}")]
    assert whole["finish_reason"] == "tool_calls"
    content = None if family == "llama3_json" else "Let me see."
    assert whole["message"].get("content") == content

    streamed, deltas = await conversation(family, per_step=per_step).streamed(
        tool_choice="auto"
    )
    assert streamed["finish_reason"] == "tool_calls"
    assert (streamed["message"].get("content") or None) == content
    assert calls_of(streamed) == calls_of(whole)
    made, names = ["", ""], list[str]()
    for delta in deltas:
        assert len(delta.tool_calls or ()) <= 1, "no event has parts of two calls"
        for piece in delta.tool_calls or ():
            if piece.function.name:
                names.append(piece.function.name)
                assert piece.id and piece.index == len(names) - 1
            assert piece.index == len(names) - 1, "a call begins after the one before"
            made[piece.index] += piece.function.arguments or ""
            wanted = (ARGUMENTS, "{}")[piece.index]
            assert wanted.startswith(made[piece.index]), "what was sent stays so"
    assert names == ["get_weather", "get_time"]
    assert made == [ARGUMENTS, "{}"]


@pytest.mark.parametrize("family", SAID)
async def test_arguments_come_while_they_are_made(family: str):
    one = conversation(family, per_step=1)
    begun = await one.begun_arguments(before="東京", tool_choice="auto")
    assert begun and ARGUMENTS.startswith(begun)
