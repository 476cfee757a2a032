"""Calls as Llama 3 writes them: bare JSON, where an answer would begin."""

from collections.abc import Collection

from fdjax.serve.turns.json_value import SPACE
from fdjax.serve.turns.parts import Part
from fdjax.serve.turns.stepwise import Stepwise

BEGIN = "<|python_tag|>"
_SEPARATORS = ";," + SPACE


class LlamaCalls(Stepwise):
    """See `Stepwise`. JSON that names no tool is content.

    Args:
        names: of the tools.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(BEGIN, names=names)
        self._step = self._at_start

    def _at_start(self, text: str) -> tuple[list[Part], str]:
        if text.isspace():
            return [Part("content", self._until.add(text)[0])], ""
        if text.lstrip().startswith("{"):
            self._open(self._until.rest())
        else:
            self._step = self._in_content
        return [], text

    def _after_begin(self, text: str) -> tuple[list[Part], str]:
        self._open(BEGIN)
        return [], text

    def _after_object(self, text: str) -> tuple[list[Part], str]:
        text = text.lstrip(_SEPARATORS)
        if text.startswith("{"):
            self._open("")
        elif text:
            self._step = self._in_content
        return [], text
