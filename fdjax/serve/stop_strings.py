"""Stop strings, found in a text that comes in pieces."""

import copy
import functools
from collections.abc import Sequence


class StopStrings:
    """Lets a text through up to the first of some strings, however it is cut.

    The first is the one that ends first; of several that end together, the longest.
    Text is held back while it could still become one.

    Args:
        strings: none of them empty.
        included: the string that was found is let through too.

    Attributes:
        found: the one that has come; then no more text may be added.
    """

    def __init__(self, strings: Sequence[str], *, included: bool) -> None:
        self._matchers = [_Matcher(string) for string in strings]
        self._included = included
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """The text that the next piece makes certain, often not the piece itself."""
        assert self.found is None
        if not self._matchers:
            return piece
        for end, character in enumerate(piece, start=1):
            # Not a generator: every matcher must see every character.
            complete = [m.string for m in self._matchers if m.advance(character)]
            if complete:
                self.found = max(complete, key=len)
                text = self.rest() + piece[:end]
                return text if self._included else text[: -len(self.found)]
        text = self.rest() + piece
        certain = len(text) - max(m.matched for m in self._matchers)
        self._held = text[certain:]
        return text[:certain]

    def fork(self) -> "StopStrings":
        """Another that has seen the same text."""
        other = copy.copy(self)
        other._matchers = [copy.copy(one) for one in self._matchers]
        return other

    def rest(self) -> str:
        """What is held back, which then no longer is: the text ends here."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """How much of one string the end of a text is (Knuth, Morris and Pratt)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self._shorter = _shorter_prefixes(string)
        self.matched = 0

    def advance(self, character: str) -> bool:
        """Takes the next character; whether the string is complete with it."""
        while self.matched and self.string[self.matched] != character:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.string[self.matched] == character
        return self.matched == len(self.string)


# A request's samples share them: those of 256 would take the event loop half a second.
@functools.lru_cache(maxsize=512)
def _shorter_prefixes(string: str) -> tuple[int, ...]:
    """For each prefix, the longest shorter one that it ends with."""
    lengths = [0] * len(string)
    for end in range(1, len(string)):
        length = lengths[end - 1]
        while length and string[length] != string[end]:
            length = lengths[length - 1]
        lengths[end] = length + (string[length] == string[end])
    return tuple(lengths)
