"""Calls as Mistral's models write them, after `[TOOL_CALLS]`.

Older ones write a list of objects, newer ones a name, `[ARGS]` and an object.
"""

import json
import re
from collections.abc import Iterator
from typing import override

from fdjax.serve.turns.json_value import SPACE
from fdjax.serve.turns.parts import Part
from fdjax.serve.turns.stepwise import Stepwise

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"\s*([\w.:/-]{1,256})\s*")


class MistralCalls(Stepwise):
    """See `Stepwise`."""

    def __init__(self) -> None:
        super().__init__(BEGIN)
        self._in_list = False
        self._head = ""

    @override
    def end(self) -> Iterator[Part]:
        """See `CallParser.end`."""
        if self._step == self._in_name:
            yield Part("content", BEGIN + self._head)
        else:
            yield from super().end()

    def _after_begin(self, text: str) -> tuple[list[Part], str]:
        text = text.lstrip()
        self._in_list = text.startswith("[")
        if self._in_list:
            self._step = self._after_object
            return [], text[1:]
        if text:
            self._head = ""
            self._step = self._in_name
        return [], text

    def _in_name(self, text: str) -> tuple[list[Part], str]:
        """A name, up to the arguments."""
        self._head += text
        head, marker, rest = self._head.partition("{")
        name = _NAME.fullmatch(head.removesuffix(ARGUMENTS).partition(CALL_ID)[0])
        if marker and name is not None:
            call = self._open(BEGIN + head)
            call.add(f'{{"name": {json.dumps(name[1])}, "arguments": ')
            call.raw = ""
            return [], marker + rest
        if marker or len(head) > 512:
            self._go_on(self._in_content, BEGIN)
            return [Part("content", BEGIN)], self._head
        return [], ""

    def _after_object(self, text: str) -> tuple[list[Part], str]:
        text = text.lstrip(SPACE + ",") if self._in_list else text.lstrip()
        if self._in_list and text.startswith("{"):
            self._open("" if self._count else f"{BEGIN}[")
        elif text:
            text = text.removeprefix("]") if self._in_list else text
            self._go_on(self._in_content, BEGIN, scraps=SPACE)
        return [], text
