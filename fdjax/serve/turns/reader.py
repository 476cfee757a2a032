"""`TurnReader`: the parts of an assistant's turn, found while its text comes."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from fdjax.serve.turns.parts import CallParser, Part
from fdjax.serve.turns.thinking import Thinking

_NONE: Mapping[int, str] = MappingProxyType({})


class TurnReader:
    """Reads one text.

    Args:
        calls: finds calls in it; `None` looks for none.
        thinking: splits reasoning off first; `None` leaves it in the content.
        markers: special tokens, which texts leave out, and what they are here.
        parallel: there may be several calls; else the turn ends with the first.

    Attributes:
        done: the turn has ended; what comes after is no part of it.
    """

    def __init__(
        self,
        calls: CallParser | None,
        *,
        thinking: Thinking | None = None,
        markers: Mapping[int, str] = _NONE,
        parallel: bool = True,
    ) -> None:
        self._calls = calls
        self._thinking = thinking
        self._parallel = parallel
        self.markers = markers
        self.done = False

    def add(self, piece: str) -> Iterator[Part]:
        """What the next piece of text makes certain."""
        thinking = self._thinking
        if thinking is not None and not thinking.over:
            thought, piece = thinking.add(piece)
            yield Part("reasoning", thought)
        yield from self._answered(piece)

    def end(self) -> Iterator[Part]:
        """What was held back: the text ends here."""
        thinking = self._thinking
        if thinking is not None and not thinking.over:
            thought, piece = thinking.end()
            yield Part("reasoning", thought)
            yield from self._answered(piece)
        if self._calls is not None:
            yield from self._until_done(self._calls.end())

    def _answered(self, piece: str) -> Iterator[Part]:
        if self._calls is None:
            yield Part("content", piece)
        else:
            yield from self._until_done(self._calls.add(piece))

    def _until_done(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            yield part
            if part.kind == "end" and not self._parallel:
                self.done = True
                return
