"""Reasoning that a model writes in front of its answer: `<think>...</think>`."""

from collections.abc import Sequence

from fdjax.serve.turns.json_value import SPACE
from fdjax.serve.turns.until import Until

BEGIN, END = "<think>", "</think>"


class Thinking:
    """Splits reasoning off a text that comes in pieces.

    White space around it is dropped, and so is its beginning, where the model writes
    that itself.

    Args:
        begun: the text is reasoning from its first character on; else only if it
            begins with `BEGIN`.
        inside: some of the reasoning stands in front of the text, whose white space at
            the beginning is part of it.
        ends: markers that end it like `END`, and are part of what follows.

    Attributes:
        over: what comes from now on is no reasoning.
    """

    def __init__(
        self, *, begun: bool, inside: bool = False, ends: Sequence[str] = ()
    ) -> None:
        self._begun = begun
        self._until = Until(END, *ends, scraps="" if inside else SPACE)
        self._held: str | None = ""  # what may become BEGIN
        self._has_ended = False
        self.over = False

    def add(self, piece: str) -> tuple[str, str]:
        """Takes the next piece.

        Returns:
            The reasoning that it makes certain, and what stands after all reasoning.
        """
        if self._has_ended:
            return self._after(piece)
        if self._held is None:
            return self._inside(piece)
        self._held += piece
        text = self._held.lstrip()
        if BEGIN.startswith(text):
            if text != BEGIN:
                return "", ""
            text = ""
        elif text.startswith(BEGIN):
            text = text[len(BEGIN) :]
        elif self._begun:
            text = self._held
        else:
            self.over = True
            return "", self._held
        self._held = None
        return self._inside(text)

    def end(self) -> tuple[str, str]:
        """What was held back: the text ends here; the same two."""
        if self._held is None:
            return self._until.rest(), ""
        return ("", self._held) if not self._begun else (self._held.strip(), "")

    def _inside(self, piece: str) -> tuple[str, str]:
        said, rest = self._until.add(piece)
        if rest is None:
            return said, ""
        if self._until.found == END:
            self._has_ended = True
            return said, self._after(rest)[1]
        self.over = True
        return said, self._until.found + rest

    def _after(self, piece: str) -> tuple[str, str]:
        rest = piece.lstrip()
        self.over = bool(rest)
        return "", rest
