"""Reasoning split off a model's text, in front of content and of calls."""

from collections.abc import Sequence

import pytest

from fdjax.serve.turns.parts import Part, merged
from fdjax.serve.turns.reader import TurnReader
from fdjax.serve.turns.tool import Tool
from fdjax.serve.turns.turns import Before, Turns
from tests.support.http_server import TOKENIZER

CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
CALLED = [Part("call", "time"), Part("arguments", "{}"), Part("end", "")]
HM, YES = Part("reasoning", "Hm, so."), Part("content", "Yes.")


def said(text: str) -> list[Part]:
    return [Part("content", text)]


def thought(text: str) -> list[Part]:
    return [Part("reasoning", text)]


@pytest.mark.parametrize(
    ("parser", "prompt", "text", "expected"),
    [
        ("qwen3", "Q", "<think>\nHm, so.\n</think>\n\nYes.", [HM, YES]),
        ("qwen3", "Q<think>\n", "Hm, so.</think>Yes.", [HM, YES]),
        ("qwen3", "Q<think>\n\n</think>\n\n", "<think>", said("<think>")),
        ("qwen3", "Q", "Yes </think> no", said("Yes </think> no")),
        ("qwen3", "Q", " <thin", said(" <thin")),
        ("qwen3", "Q", "<think>", []),
        ("qwen3", "Q", "<think>\nHm, <", thought("Hm, <")),
        ("qwen3", "Q", f"<think>Hm, so.</think>Yes.{CALL}", [HM, YES, *CALLED]),
        ("qwen3", "Q", f"<think>Hm, so.\n{CALL}", [HM, *CALLED]),
        ("deepseek_r1", "Q", "Hm, so.\n</think>\n\nYes.", [HM, YES]),
        ("deepseek_r1", "Q", "<think>\nHm, so.\n</think>\n\nYes.", [HM, YES]),
        ("deepseek_r1", "Q", "Hm, so.", [HM]),
        ("deepseek_r1", "Q", "<thin", thought("<thin")),
        ("deepseek_r1", "Q", f"Hm, so.</think>{CALL}", [HM, *CALLED]),
        ("deepseek_r1", "Q<think></think>", "Yes.", [YES]),
        (None, "Q", "<think>\nHm.\n</think>", said("<think>\nHm.\n</think>")),
    ],
)
def test_in_one_piece_and_by_character(
    parser: str | None, prompt: str, text: str, expected: Sequence[Part]
):
    turns = Turns(TOKENIZER, tool_call_parser="hermes", reasoning_parser=parser)
    tools = [Tool("time", None, {})]
    for pieces in ([text], [*text]):
        reader = turns.reader(Before(prompt), tools, parallel=True)
        assert parts_of(reader, pieces) == list(expected)


@pytest.mark.parametrize(
    ("parser", "continued", "text", "expected"),
    [
        ("qwen3", "The fox", " ran.", said(" ran.")),
        ("deepseek_r1", "The fox", " ran.", said(" ran.")),
        ("deepseek_r1", "<think>Hm.</think>So", " on.", said(" on.")),
        ("qwen3", "<think>Hm,", " so.</think>Yes.", [Part("reasoning", " so."), YES]),
        ("qwen3", "<think>", f"Hm, so.\n{CALL}", [HM, *CALLED]),
        (None, "<think>Hm,", " so.</think>", said(" so.</think>")),
    ],
)
def test_a_turn_that_is_continued(
    parser: str | None, continued: str, text: str, expected: Sequence[Part]
):
    """What stands before it in the prompt says nothing, nor do earlier turns."""
    turns = Turns(TOKENIZER, tool_call_parser="hermes", reasoning_parser=parser)
    before = Before(f"<think>{continued}", continued)
    for pieces in ([text], [*text]):
        reader = turns.reader(before, [Tool("time", None, {})], parallel=True)
        assert parts_of(reader, pieces) == list(expected)


def test_without_tools_calls_are_content():
    turns = Turns(TOKENIZER, reasoning_parser="qwen3")
    reader = turns.reader(Before("Q"), [], parallel=True)
    parts = parts_of(reader, [*f"<think>Hm, so.{CALL}</think>{CALL}"])
    assert parts == [Part("reasoning", f"Hm, so.{CALL}"), Part("content", CALL)]


def parts_of(reader: TurnReader, pieces: Sequence[str]) -> list[Part]:
    parts = [part for piece in pieces for part in reader.add(piece)]
    return merged([*parts, *reader.end()])
