"""Calls found in a model's text, whatever the pieces that it comes in."""

import itertools
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.serve.turns.hermes import HermesCalls
from fdjax.serve.turns.llama import LlamaCalls
from fdjax.serve.turns.mistral import MistralCalls
from fdjax.serve.turns.parts import CallParser, Part, merged

WEATHER = '{"city": "Łódź </tool_call> \\"}\\" 東京", "days": [1, {"a": null}]}'
NAMES = ("weather", "time")


def llama() -> LlamaCalls:
    return LlamaCalls(NAMES)


def said(text: str) -> Part:
    return Part("content", text)


def called(name: str, arguments: str, call: int = 0) -> list[Part]:
    return [
        Part("call", name, call),
        Part("arguments", arguments, call),
        Part("end", "", call),
    ]


def cut(name: str, arguments: str, call: int = 0) -> list[Part]:
    """The text ended inside the arguments."""
    return [Part("call", name, call), Part("arguments", arguments, call)]


BARE = '{"name": "weather", "arguments": %s}' % WEATHER  # noqa: UP031  (braces)
HERMES = f"<tool_call>\n{BARE}\n</tool_call>"
LLAMA = BARE.replace("arguments", "parameters")
WEATHER_CALL = called("weather", WEATHER)
CASES: list[tuple[Callable[[], CallParser], str, Sequence[Part]]] = [
    # No call at all.
    (HermesCalls, "Hello, <tool_ca you\n", [said("Hello, <tool_ca you\n")]),
    (HermesCalls, "\n\n", [said("\n\n")]),
    (HermesCalls, BARE, [said(BARE)]),
    (MistralCalls, BARE, [said(BARE)]),
    (llama, "A { is no call", [said("A { is no call")]),
    (llama, '  {"title": "A story"}', [said('  {"title": "A story"}')]),
    (llama, '{"name": "Anna", "age": 3}', [said('{"name": "Anna", "age": 3}')]),
    (llama, '{"name": "tim', [said('{"name": "tim')]),
    (llama, " ", [said(" ")]),
    (llama, "", []),
    # One.
    (HermesCalls, HERMES, WEATHER_CALL),
    (HermesCalls, "<tool_call>" + BARE, WEATHER_CALL),
    (HermesCalls, f"Let me see.\n\n{HERMES}", [said("Let me see."), *WEATHER_CALL]),
    (HermesCalls, f"{HERMES}\nThere.", [*WEATHER_CALL, said("There.")]),
    (HermesCalls, f"{HERMES} \n", WEATHER_CALL),
    (llama, LLAMA, WEATHER_CALL),
    (llama, f"\n{BARE} ", WEATHER_CALL),
    (llama, f"<|python_tag|>{LLAMA}", WEATHER_CALL),
    (llama, f"See: <|python_tag|>{LLAMA}", [said("See:"), *WEATHER_CALL]),
    (MistralCalls, f"[TOOL_CALLS] [{BARE}]", WEATHER_CALL),
    (MistralCalls, f"[TOOL_CALLS]weather[ARGS]{WEATHER}", WEATHER_CALL),
    (MistralCalls, f"[TOOL_CALLS]weather{WEATHER}", WEATHER_CALL),
    (
        MistralCalls,
        f"Hm.[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{WEATHER}",
        [
            said("Hm."),
            *WEATHER_CALL,
        ],
    ),
    # Several.
    (
        HermesCalls,
        HERMES + '\n<tool_call>{"name": "time"}</tool_call>',
        [
            *WEATHER_CALL,
            *called("time", "{}", 1),
        ],
    ),
    (
        llama,
        LLAMA + '; {"name": "time", "parameters": {}}',
        [
            *WEATHER_CALL,
            *called("time", "{}", 1),
        ],
    ),
    (
        MistralCalls,
        f'[TOOL_CALLS][{BARE}, {{"name": "time"}}]',
        [
            *WEATHER_CALL,
            *called("time", "{}", 1),
        ],
    ),
    (
        MistralCalls,
        f"[TOOL_CALLS]weather[ARGS]{WEATHER}[TOOL_CALLS]time[ARGS]{{}}",
        [
            *WEATHER_CALL,
            *called("time", "{}", 1),
        ],
    ),
    # Written in other ways.
    (
        HermesCalls,
        f'<tool_call>{{"arguments": {WEATHER}, "name": "weather"}}',
        WEATHER_CALL,
    ),
    (
        HermesCalls,
        '<tool_call>{"name": "time", "arguments": null}',
        called("time", "{}"),
    ),
    (HermesCalls, '<tool_call>{"name": "time", "arguments": ""}', called("time", "{}")),
    (HermesCalls, '<tool_call>{"id": 7, "name": "time"}', called("time", "{}")),
    (
        HermesCalls,
        '<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}',
        called("time", '{"a": 1}'),
    ),
    (
        HermesCalls,
        '<tool_call>{"name": "time", "arguments": {}, "arguments": {"a": 1}}',
        called("time", "{}"),
    ),
    (
        HermesCalls,
        HERMES.replace("}\n<", "}}\n<") + " Done",
        [*WEATHER_CALL, said("Done")],
    ),
    (
        HermesCalls,
        BARE.join(["<tool_call>", "<tool_call>"]) + BARE,
        [
            *WEATHER_CALL,
            *called("weather", WEATHER, 1),
        ],
    ),
    # Cut short.
    (HermesCalls, "See <tool", [said("See <tool")]),
    (HermesCalls, "<tool_call>", [said("<tool_call>")]),
    (HermesCalls, '<tool_call>\n{"name": "ti', [said('<tool_call>\n{"name": "ti')]),
    (
        HermesCalls,
        '<tool_call>{"name": "time", "arguments": {"a": "b',
        cut("time", '{"a": "b'),
    ),
    (HermesCalls, '<tool_call>{"name": "time", "arguments": {}', called("time", "{}")),
    (MistralCalls, "[TOOL_CALLS]", [said("[TOOL_CALLS]")]),
    (MistralCalls, "[TOOL_CALLS]tim", [said("[TOOL_CALLS]tim")]),
    (MistralCalls, '[TOOL_CALLS][{"na', [said('[TOOL_CALLS][{"na')]),
    (MistralCalls, '[TOOL_CALLS]time[ARGS]{"a', cut("time", '{"a')),
    # Not as it should be.
    (
        HermesCalls,
        "<tool_call>time()</tool_call> No",
        [said("<tool_call>time()</tool_call> No")],
    ),
    (
        HermesCalls,
        '<tool_call>{"arguments": {}}',
        [said('<tool_call>{"arguments": {}}')],
    ),
    (HermesCalls, '<tool_call>{"name": 3}', [said('<tool_call>{"name": 3}')]),
    (
        HermesCalls,
        '<tool_call>{"name": "time", arguments: {}}',
        [said('<tool_call>{"name": "time", arguments: {}}')],
    ),
    (
        HermesCalls,
        '<tool_call>{"name": "time", "arguments": {"a": [1}}\n</tool_call>Well',
        [
            *called("time", '{"a": [1}}'),
            said("Well"),
        ],
    ),
    (MistralCalls, "[TOOL_CALLS]two words {}", [said("[TOOL_CALLS]two words {}")]),
    (llama, f"{LLAMA}, and so on", [*WEATHER_CALL, said("and so on")]),
]


WORDS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *("{", "}", "[", "]", '"', ":", ",", "\\", "\n", " ", ";", "name", "time"),
    *("arguments", '{"name": "time", "arguments": ', '"a": 1'),
]


def parsed(parser: CallParser, pieces: Sequence[str]) -> list[Part]:
    parts = [part for piece in pieces for part in parser.add(piece)]
    return merged([*parts, *parser.end()])


@pytest.mark.parametrize(("make", "text", "expected"), CASES)
def test_in_one_piece_and_by_character(
    make: Callable[[], CallParser], text: str, expected: Sequence[Part]
):
    assert parsed(make(), [text]) == list(expected)
    assert parsed(make(), [*text]) == list(expected)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_pieces_make_what_the_whole_makes(data: st.DataObject):
    make, text, expected = data.draw(st.sampled_from(CASES))
    edges = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parsed(make(), pieces) == list(expected)


@given(
    make=st.sampled_from([HermesCalls, llama, MistralCalls]),
    words=st.lists(st.sampled_from(WORDS)),
)
@settings(max_examples=300, deadline=None)
def test_nonsense_is_read_alike_in_any_pieces(
    make: Callable[[], CallParser], words: list[str]
):
    text = "".join(words)
    whole = parsed(make(), [text])
    assert parsed(make(), [*text]) == whole == parsed(make(), words)
    calls = [part.call for part in whole if part.kind == "call"]
    assert calls == list(range(len(calls)))


def test_arguments_come_while_they_are_made():
    """No character of them waits for another one."""
    parser = HermesCalls()
    head = '<tool_call>{"name": "weather", "arguments": '
    assert merged(part for piece in head for part in parser.add(piece)) == []
    for character in WEATHER:
        parts = [part for part in parser.add(character) if part.kind == "arguments"]
        assert "".join(part.text for part in parts) == character
    assert json.loads(WEATHER)["days"] == [1, {"a": None}]
