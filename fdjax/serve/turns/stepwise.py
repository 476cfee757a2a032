"""`Stepwise`: what parsers of calls share."""

import abc
from collections.abc import Callable, Collection, Iterator

from fdjax.serve.turns.call_object import CallObject
from fdjax.serve.turns.json_value import SPACE
from fdjax.serve.turns.parts import Part
from fdjax.serve.turns.until import Until

type Step = Callable[[str], tuple[list[Part], str]]
"""Takes a text; what it makes certain, and what the next step takes."""


# Some models close a bracket too many.
_SCRAPS = SPACE + "}]"


class Stepwise(abc.ABC):
    """Reads a text in steps; see `CallParser`.

    What begins like a call and is none is content, as it was written: nothing is lost
    but white space around calls.

    Args:
        begin: what stands in front of a call.
        end: what stands after it; empty where nothing does.
        names: see `CallObject`.
    """

    def __init__(
        self, begin: str, end: str = "", *, names: Collection[str] | None = None
    ) -> None:
        self._begin = begin
        self._end = end
        self._names = names
        self._count = 0
        self._opening = ""
        self._object = CallObject(0)
        self._until = Until(begin)
        self._step: Step = self._in_content

    def add(self, text: str) -> Iterator[Part]:
        """See `CallParser.add`."""
        while text:
            parts, text = self._step(text)
            yield from parts

    def end(self) -> Iterator[Part]:
        """See `CallParser.end`."""
        call = self._object
        if self._step == self._in_object:
            if not call.begun:
                yield Part("content", self._opening + call.raw)
            elif call.given:
                yield Part("end", "", self._count)
        elif self._step == self._after_begin:
            yield Part("content", self._begin)
        elif self._step == self._in_ruins:
            yield Part("arguments", self._until.rest(), self._count)
        else:
            yield Part("content", self._until.rest())

    @abc.abstractmethod
    def _after_begin(self, text: str) -> tuple[list[Part], str]:
        """The step after what begins a call."""

    @abc.abstractmethod
    def _after_object(self, text: str) -> tuple[list[Part], str]:
        """The step after a call's object."""

    def _open(self, opening: str) -> CallObject:
        """Begins an object, in front of which that stands."""
        self._opening = opening
        self._object = CallObject(self._count, self._names)
        self._step = self._in_object
        return self._object

    def _go_on(self, step: Step, *markers: str, scraps: str = "") -> None:
        self._step = step
        self._until = Until(*markers, scraps=scraps)

    def _in_content(self, text: str) -> tuple[list[Part], str]:
        said, rest = self._until.add(text)
        if rest is not None:
            self._step = self._after_begin
        return [Part("content", said)], rest or ""

    def _in_object(self, text: str) -> tuple[list[Part], str]:
        call = self._object
        parts, rest = call.add(text)
        if call.broken and not call.begun:
            parts.append(Part("content", self._opening + call.raw))
            self._go_on(self._in_content, self._begin)
        elif call.broken and not call.given:
            self._go_on(self._in_ruins, *filter(None, [self._end]))
        elif call.broken:  # what broke it stands after it
            parts.append(Part("end", "", self._count))
            rest = text[len(text) - len(rest) - 1 :]
        if call.given and (call.broken or call.ended):
            self._count += 1
            markers = [*filter(None, [self._end]), self._begin]
            self._go_on(self._after_object, *markers, scraps=_SCRAPS)
        return parts, rest

    def _in_ruins(self, text: str) -> tuple[list[Part], str]:
        """Arguments that are no JSON, up to where the call ends."""
        said, rest = self._until.add(text)
        parts = [Part("arguments", said, self._count)]
        if rest is not None:
            parts.append(Part("end", "", self._count))
            self._count += 1
            self._go_on(self._in_content, self._begin, scraps=SPACE)
        return parts, rest or ""
