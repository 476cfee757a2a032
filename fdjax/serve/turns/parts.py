"""`Part`: a piece of an assistant's turn."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

type Kind = Literal["reasoning", "content", "call", "arguments", "end"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a turn, as it comes.

    Attributes:
        kind: `reasoning`, `content` and `arguments` are continued by the next part of
            their kind; `call` begins a call, whose arguments follow until `end`.
        text: of what it is; the tool's name where a call begins.
        call: which of the turn's calls.
    """

    kind: Kind
    text: str
    call: int = 0


class CallParser(Protocol):
    """Finds calls in a text that comes in pieces."""

    def add(self, text: str) -> Iterable[Part]:
        """What the next piece makes certain."""
        ...

    def end(self) -> Iterable[Part]:
        """What was held back: the text ends here."""
        ...


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same in as few parts as can be, none of them empty but calls' ends."""
    few: list[Part] = []
    for part in parts:
        if not part.text and part.kind != "end":
            continue
        last = few[-1] if few else None
        if (
            last is not None
            and part.kind not in ("call", "end")
            and (last.kind, last.call) == (part.kind, part.call)
        ):
            few[-1] = Part(part.kind, last.text + part.text, part.call)
        else:
            few.append(part)
    return few
