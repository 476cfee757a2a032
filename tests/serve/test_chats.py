"""Chats as `LLM.chat` takes them: what is refused, and what becomes of the rest."""

from typing import Any

import pytest

from fdjax import LLM, RequestError, SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.chat_template import ChatText
from fdjax.serve.chats import Chats
from fdjax.serve.tokenizer import FastTokenizer

TALES = resolve(SHIPPED)
TOKENIZER = FastTokenizer(TALES / "tokenizer.json")
USER = {"role": "user", "content": "Once upon"}
THEN = {"role": "assistant", "content": "a time"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def test_one_chat_or_several():
    chats = Chats(TALES, TOKENIZER)
    first = {
        "prompt": "Once upon\na time",
        "prompt_token_ids": TOKENIZER.encode("Once upon\na time"),
    }
    second = {"prompt": "a time", "prompt_token_ids": TOKENIZER.encode("a time")}
    assert chats.prompts([USER, THEN]) == [first]
    assert chats.prompts([[USER, THEN], [THEN]]) == [first, second]
    assert chats.prompts([]) == []


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    (prompt,) = Chats(TALES, TOKENIZER).prompts([{"role": "user", "content": parts}])
    assert prompt.get("prompt") == "Once\nupon"


@pytest.mark.parametrize(
    "messages",
    [
        "Once upon",
        USER,
        [[]],
        ["Once upon"],
        [USER, "a time"],
        [[USER], USER],
        [{"role": "user"}],
        [{"role": 3, "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "a", "colour": "b"}],
        [{"role": "tool", "tool_call_id": "a"}],
    ],
)
def test_what_is_no_chat_is_refused(messages: Any):
    with pytest.raises(RequestError, match=r"give (\{'role'|a list|at least one)"):
        Chats(TALES, TOKENIZER).prompts(messages)


class Template:
    """Notes what it is given."""

    def __init__(self, text: str = "{{ messages }}") -> None:
        self.text = text
        self.given: tuple[Any, ...] = ()

    def render(self, *given: Any) -> ChatText:
        self.given = given
        return ChatText("Once", plain=False)


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def test_tools_calls_and_options_reach_the_template(monkeypatch: pytest.MonkeyPatch):
    chats, template = Chats(TALES, TOKENIZER), Template()
    monkeypatch.setitem(chats.__dict__, "_template", template)
    call = {"function": {"name": "get_weather", "arguments": {}}}
    messages: list[Any] = [
        USER,
        {"role": "assistant", "tool_calls": [call], "reasoning": "Hm."},
        {"role": "tool", "content": "Sunny.", "tool_call_id": "a"},
    ]
    chats.prompts(messages, [WEATHER], {"enable_thinking": False})
    turns, tools, options, _ = template.given
    assert turns[1] == messages[1] | {"content": ""}
    assert turns[2] == messages[2]
    assert (tools, options) == ([WEATHER], {"enable_thinking": False})


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([WEATHER], "1 tools, but the model has no chat template"),
        (WEATHER, "give a list of them"),
        ([{"name": "get_weather"}], r"tools\[0\] is .*; give {'type': 'function'"),
    ],
)
def test_tools_that_nobody_can_be_told_of(tools: Any, message: str):
    with pytest.raises(RequestError, match=message):
        Chats(TALES, TOKENIZER).prompts([USER], tools)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ({}, "begun"),
        ({"add_generation_prompt": True}, "begun"),
        ({"add_generation_prompt": False}, "closed"),
        ({"continue_final_message": True}, "open"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "open"),
    ],
)
def test_where_the_prompt_ends(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], end: str
):
    chats, template = Chats(TALES, TOKENIZER), Template()
    monkeypatch.setitem(chats.__dict__, "_template", template)
    chats.prompts([USER, THEN], **words)
    assert template.given[3] == end


@pytest.mark.parametrize(
    ("chat", "words", "message"),
    [
        ([USER], {}, "the last of the messages is of the role user;"),
        ([USER, THEN | {"tool_calls": []}], {"add_generation_prompt": True}, "is true"),
        (
            [USER, {"role": "assistant", "tool_calls": [{}]}],
            {},
            "of the role assistant with tool_calls;",
        ),
    ],
)
def test_what_cannot_go_on(chat: Any, words: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        Chats(TALES, TOKENIZER).prompts([chat], continue_final_message=True, **words)


def test_without_a_tokenizer_there_is_no_chat():
    with pytest.raises(RequestError, match="no tokenizer, and so no chat"):
        Chats(TALES, None).prompts([USER])


def test_a_chat_is_answered(llm: LLM):
    (answer,) = llm.chat([USER, THEN], GREEDY, use_tqdm=False)
    (same,) = llm.generate("Once upon\na time", GREEDY)
    assert (answer.prompt, answer.token_ids) == (same.prompt, same.token_ids)
    both = llm.chat([[USER, THEN], [USER]], GREEDY)
    assert both[0].token_ids == same.token_ids
    assert both[1].prompt == "Once upon"
