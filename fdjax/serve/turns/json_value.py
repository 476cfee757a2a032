"""`JsonValue`: where a JSON value ends, found character by character."""

from typing import Literal

_CLOSERS = {"{": "}", "[": "]"}
SPACE = " \t\r\n"


class JsonValue:
    """Follows one value, brackets and strings alone: it need not be correct inside.

    Attributes:
        kind: of the value, known with its first character.
        ended: it is complete. A scalar never is: it ends before what follows it.
        broken: brackets do not match.
    """

    def __init__(self) -> None:
        self.kind: Literal["object", "array", "string", "scalar"] | None = None
        self.ended = False
        self.broken = False
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """Of the value so far."""
        return "".join(self._text)

    def take(self, character: str) -> bool:
        """Takes the next character; whether it is part of the value."""
        if self.kind is None:
            if character in SPACE:
                return False
            kinds = {"{": "object", "[": "array", '"': "string"}
            self.kind = kinds.get(character, "scalar")  # pyright: ignore[reportAttributeAccessIssue]  (values above)
        elif self.kind == "scalar" and character in ",]}" + SPACE:
            return False
        self._text.append(character)
        if self._in_string:
            self._in_text(character)
        else:
            self._between(character)
        return True

    def _in_text(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            self.ended = not self._closers

    def _between(self, character: str) -> None:
        if character == '"':
            self._in_string = True
        elif character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif character in "]}":
            if not self._closers or self._closers.pop() != character:
                self.broken = True
            self.ended = not self._closers and not self.broken
