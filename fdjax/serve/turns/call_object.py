"""`CallObject`: `{"name": ..., "arguments": {...}}`, read while it comes."""

import json
from collections.abc import Collection

from fdjax.serve.turns.json_value import SPACE, JsonValue
from fdjax.serve.turns.parts import Part

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)
NO_ARGUMENTS = "{}"


class CallObject:
    """Follows the object of one call.

    Its arguments are let through as the model wrote them, and as soon as the name is
    known: not a character is written anew, so pieces make the same text as the whole.

    Args:
        call: which of the turn's calls.
        names: tools that there are; an object that names another is no call. By
            default any name will do, and any keys beside those of a call.

    Attributes:
        begun: it is certain to be a call.
        ended: it is complete.
        broken: it is not as it should be, from the last character on.
        given: its arguments are complete.
        raw: all of it so far, until it has begun.
    """

    def __init__(self, call: int, names: Collection[str] | None = None) -> None:
        self._call = call
        self._names = names
        self._step = self._start
        self._value = JsonValue()
        self._key = ""
        self._name = ""
        self._fresh: list[str] = []
        self.begun = False
        self.ended = False
        self.broken = False
        self.given = False
        self.raw = ""

    def add(self, text: str) -> tuple[list[Part], str]:
        """Takes the next piece.

        Returns:
            What it makes certain, and what stands after the object's end, or after
            what broke it.
        """
        was_begun, rest = self.begun, ""
        for at, character in enumerate(text, start=1):
            self._step(character)
            if self.ended or self.broken:
                text, rest = text[:at], text[at:]
                break
        parts: list[Part] = []
        if not was_begun:
            self.raw += text
        if self.begun and not was_begun:
            parts.append(Part("call", self._name, self._call))
        if self.begun and self._fresh:
            parts.append(Part("arguments", "".join(self._fresh), self._call))
            self._fresh.clear()
        if self.ended:
            parts.append(Part("end", "", self._call))
        return parts, rest

    def _start(self, character: str) -> None:
        if character == "{":
            self._step = self._before_key
        elif character not in SPACE:
            self.broken = True

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._value = JsonValue()
            self._step = self._in_key
            self._step(character)
        elif character == "}":
            self._end()
        elif character not in SPACE:
            self.broken = True

    def _in_key(self, character: str) -> None:
        self._value.take(character)
        if self._value.ended:
            self._key = str(self._loaded())
            self._step = self._before_value
            self.broken |= self._names is not None and self._key not in _KEYS

    def _before_value(self, character: str) -> None:
        if character == ":":
            self._value = JsonValue()
            self._step = self._in_value
        elif character not in SPACE:
            self.broken = True

    def _in_value(self, character: str) -> None:
        value = self._value
        if not value.take(character):
            if value.kind is not None:  # a scalar ends before what follows it
                self._take_value()
                self._after_value(character)
            return
        if self._is_arguments and value.kind == "object":
            self._fresh.append(character)
            self._begin()
        if value.broken:
            self.broken = True
        elif value.ended:
            self._take_value()

    def _after_value(self, character: str) -> None:
        if character == ",":
            self._step = self._before_key
        elif character == "}":
            self._end()
        elif character not in SPACE:
            self.broken = True

    @property
    def _is_arguments(self) -> bool:
        return self._key in _ARGUMENTS and not self.given

    def _take_value(self) -> None:
        self._step = self._after_value
        if self._key == "name":
            self._take_name(self._loaded())
        elif self._is_arguments:
            if self._value.kind != "object":
                self._fresh.append(self._rewritten())
                self._begin()
            self.given = True

    def _rewritten(self) -> str:
        """Arguments that are no object: some models write that into a text."""
        loaded = self._loaded()
        if loaded is None or loaded == "":
            return NO_ARGUMENTS
        return loaded if isinstance(loaded, str) else self._value.text

    def _take_name(self, name: object) -> None:
        is_name = isinstance(name, str) and bool(name)
        if not is_name or (self._names is not None and name not in self._names):
            self.broken = True
        elif not self.begun:
            self._name = str(name)
            self._begin(known=bool(self._fresh))

    def _begin(self, *, known: bool = True) -> None:
        """The call is certain once there are both a name and arguments."""
        self.begun |= known and bool(self._name)

    def _end(self) -> None:
        if not self._name:
            self.broken = True
            return
        if not self.given:
            self._fresh.append(NO_ARGUMENTS)
        self.begun = self.ended = self.given = True

    def _loaded(self) -> object:
        try:
            return json.loads(self._value.text)
        except (ValueError, RecursionError):
            self.broken = True
            return None
