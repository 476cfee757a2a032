"""Calls as Hermes and Qwen write them: `<tool_call>{...}</tool_call>`."""

from fdjax.serve.turns.json_value import SPACE
from fdjax.serve.turns.parts import Part
from fdjax.serve.turns.stepwise import Stepwise

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesCalls(Stepwise):
    """See `Stepwise`."""

    def __init__(self) -> None:
        super().__init__(BEGIN, END)

    def _after_begin(self, text: str) -> tuple[list[Part], str]:
        self._open(BEGIN)
        return [], text

    def _after_object(self, text: str) -> tuple[list[Part], str]:
        said, rest = self._until.add(text)
        parts = [Part("content", said)]
        if rest is None:
            return parts, ""
        if self._until.found == BEGIN:
            self._step = self._after_begin
        else:
            self._go_on(self._in_content, BEGIN, scraps=SPACE)
        return parts, rest
