"""The family of a model by its chat template, and what it is held to."""

import dataclasses
import typing

import pytest

from fdjax import ConfigError
from fdjax.cli.request_options import ReasoningParser, ToolCallParser
from fdjax.serve.turns.call_grammar import call_grammar, text_then_calls
from fdjax.serve.turns.families import FAMILIES, CallFormat, family_of
from fdjax.serve.turns.tool import Tool
from fdjax.serve.turns.turns import REASONING, Turns
from tests.support.http_server import TOKENIZER

QWEN = "{%- if tools %}{{ '<tool_call>\\n{\"name\": ' }}{% endif %}"
QWEN_CODER = "{% if tools %}<tool_call><function=name>{% endif %}"
LLAMA = '{{ \'{"name": function name, "parameters": dictionary\' }}{% for t in tools %}'
MISTRAL = "{{ '[TOOL_CALLS] [' }}"
MISTRAL_NAMED = "{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "$defs": {"days": {"type": "integer"}},
}
TOOLS = [Tool("weather", PARAMETERS, {}), Tool("time", None, {})]
WEATHER = '{"city": "Rome", "days": 3}'


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (LLAMA, "llama3_json"),
        (MISTRAL, "mistral"),
        (MISTRAL_NAMED, "mistral"),
        (QWEN_CODER, None),
        ("{{ messages }}", None),
        ("", None),
    ],
)
def test_found_from_the_template(template: str, name: str | None):
    family = family_of(template)
    assert (family and family.name) == name
    assert Turns(TOKENIZER, template=template).calls_are_known == (name is not None)


def test_the_words_of_the_command_line():
    assert typing.get_args(ToolCallParser) == tuple(FAMILIES)
    assert typing.get_args(ReasoningParser) == REASONING
    with pytest.raises(ConfigError, match="'o1'; use one of qwen3, deepseek_r1"):
        Turns(TOKENIZER, reasoning_parser="o1")
    with pytest.raises(ConfigError, match="'pythonic'; use one of hermes"):
        Turns(TOKENIZER, tool_call_parser="pythonic")


@pytest.mark.parametrize(
    ("template", "one", "two"),
    [
        (
            QWEN,
            '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
            '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ),
        (
            LLAMA,
            '{"name": "weather", "parameters": %s}',
            '; {"name": "time", "parameters": {}}',
        ),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "weather", "arguments": %s}',
            ', {"name": "time", "arguments": {}}',
        ),
        (MISTRAL_NAMED, "[TOOL_CALLS]weather[ARGS]%s", "[TOOL_CALLS]time[ARGS]{}"),
    ],
)
def test_what_is_held_is_what_is_read(template: str, one: str, two: str):
    family = family_of(template)
    assert family is not None
    closing = "".join(family.closing)
    one = one % WEATHER
    assert accepts(family, one + closing, parallel=False)
    assert accepts(family, one + two + closing, parallel=True)
    assert not accepts(family, one + two + closing, parallel=False)
    for wrong in ('"town"', '"city": 3', '"name": "other"'):
        assert not accepts(family, one.replace('"city"', wrong, 1) + closing)
    more = one.replace('"days": 3', '"days": 3, "more": 1')
    assert not accepts(family, more + closing)
    parser = family.parser({"weather", "time"})
    parts = [*parser.add(one + two + closing), *parser.end()]
    assert [part.text for part in parts if part.kind == "call"] == ["weather", "time"]
    assert not "".join(part.text for part in parts if part.kind == "content")


@pytest.mark.parametrize("template", [QWEN, MISTRAL, MISTRAL_NAMED])
def test_strict_tools_are_held_where_the_model_calls_them(template: str):
    """Any text may come, and after it calls whose arguments suit strict schemas."""
    family = family_of(template)
    assert family is not None and family.marker is not None
    tools = [dataclasses.replace(TOOLS[0], strict=True), TOOLS[1]]
    head = [*family.opening, *family.before]
    tail = "".join([*family.after, *family.closing])

    def called(name: str, arguments: str) -> str:
        return "".join([*head, name, *family.middle]) + arguments + tail

    def held(text: str, *, parallel: bool = True) -> bool:
        grammar = text_then_calls(family, tools, {}, parallel=parallel)
        return accepted(grammar, text)

    for said in ("", "Let me <b>see</b>.\n"):
        assert held(said)
        assert held(said + called("weather", WEATHER))
        assert held(said + called("time", '{ "any": [1, {}] }')), "it is not strict"
        assert not held(said + called("weather", '{"town": "Rome"}'))
        assert not held(said + called("other", "{}"))
    between = "".join(family.separator) + "".join(family.before)
    second = between + "time" + "".join(family.middle) + "{}" + "".join(family.after)
    closing = "".join(family.closing)
    both = called("weather", WEATHER).removesuffix(closing) + second + closing
    assert held("So: " + both)
    assert not held("So: " + both, parallel=False)


def test_where_no_call_need_be_held():
    strict = [dataclasses.replace(TOOLS[0], strict=True)]
    hermes = Turns(TOKENIZER, tool_call_parser="hermes")
    assert hermes.held_if_called(TOOLS, parallel=True) is None
    assert hermes.held_if_called(strict, parallel=True) is not None
    llama = Turns(TOKENIZER, tool_call_parser="llama3_json")
    assert llama.held_if_called(strict, parallel=True) is None, "they look like text"


def accepts(family: CallFormat, text: str, *, parallel: bool = True) -> bool:
    return accepted(call_grammar(family, TOOLS, {}, parallel=parallel), text)


def accepted(grammar: str, text: str) -> bool:
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_bytes(text.encode())
    taken = matcher.try_consume_tokens(tokens)
    return taken == len(tokens) and matcher.is_accepting()
