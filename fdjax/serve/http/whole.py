"""A whole answer: JSON that is made while its tokens come, and written in pieces.

Whoever makes JSON holds up all that goes on in the process, in whatever thread. A
log-probability of one token with 20 others has 1.5 KB of it, and an answer may have
100,000 of them: so those of each chunk are made when it comes, and what is sent at
once is bounded.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import StreamingResponse

from fdjax.serve.http.encoding import encoded
from fdjax.serve.outputs import Chunk, FinishText
from fdjax.serve.turns.parts import Part

PIECE_BYTES = 2**16
"""What is sent at once, but for the last chunk in it."""

type Lists = Mapping[str, Sequence[bytes] | None]
"""Fields whose entries are JSON already, several in each; `None` becomes `null`."""

type Columns = Mapping[str, Sequence[Any]]
"""Log-probabilities as an endpoint writes them: lists by name, one entry a token."""


@dataclass
class WholeSample:
    """All that came of one sample, as far as it came.

    Attributes:
        texts: of its chunks.
        turn: parts of an assistant's turn, where it was read as one.
        columns: of its log-probabilities, the entries of each chunk as JSON; `None`
            where they were not asked for.
        token_ids: of its tokens as JSON, where they were asked for.
        finish_reason: set at the end.
    """

    texts: list[str] = field(default_factory=list[str])
    turn: list[Part] = field(default_factory=list[Part])
    columns: dict[str, list[bytes]] | None = None
    token_ids: list[bytes] = field(default_factory=list[bytes])
    finish_reason: FinishText | None = None

    @property
    def text(self) -> str:
        """Of the output."""
        return "".join(self.texts)

    def add(self, chunk: Chunk, logprobs: Columns | None, *, tells_ids: bool) -> None:
        """Takes the next chunk, and what an endpoint makes of its log-probabilities."""
        if tells_ids and chunk.token_ids:
            self.token_ids.append(encoded(chunk.token_ids)[1:-1])
        self.texts.append(chunk.text or "")
        self.turn += chunk.parts or ()
        self.finish_reason = chunk.finish_reason
        if logprobs is None:
            return
        if self.columns is None:
            self.columns = {name: [] for name in logprobs}
        for name, entries in logprobs.items():
            if entries:
                self.columns[name].append(encoded(entries)[1:-1])

    def parts(self, choice: Mapping[str, Any], lists: Lists) -> Iterator[bytes]:
        """The JSON of a choice, with the log-probabilities as its last field."""
        yield encoded(choice)[:-1]
        yield from _fields(lists)
        yield b',"logprobs":'
        if self.columns is None:
            yield b"null}"
            return
        before = b"{"
        for name, entries in self.columns.items():
            yield before + encoded(name) + b":["
            yield from _separated(entries)
            before = b"],"
        yield b"]}}"


def whole_answer(
    frame: Mapping[str, Any],
    choices: Iterable[Iterable[bytes]],
    lists: Lists,
    usage: Mapping[str, Any],
) -> StreamingResponse:
    """An answer.

    Args:
        frame: its first fields.
        choices: the parts of each.
        lists: fields behind them.
        usage: its last field.
    """
    parts = [encoded(frame)[:-1] + b',"choices":[']
    for place, choice in enumerate(choices):
        parts += [b","] * (place > 0)
        parts += choice
    parts += [b"]", *_fields(lists)]
    parts.append(b',"usage":' + encoded(usage) + b"}")
    return in_pieces(parts)


def opening_event(
    frame: Mapping[str, Any],
    choice: Mapping[str, Any],
    of_choice: Lists,
    of_all: Lists,
    usage: Mapping[str, Any],
) -> bytes:
    """The event that a sample begins with, as `event` would make it.

    Args:
        frame: its first fields.
        choice: the sample.
        of_choice: more fields of it.
        of_all: fields behind it.
        usage: the last field, or nothing.
    """
    parts = [b"data: ", encoded(frame)[:-1], b',"choices":[', encoded(choice)[:-1]]
    parts += [*_fields(of_choice), b"}]", *_fields(of_all)]
    parts += [b",", encoded(usage)[1:-1]] if usage else []
    return b"".join([*parts, b"}\n\n"])


def in_pieces(parts: Sequence[bytes]) -> StreamingResponse:
    """JSON that was made in parts, sent so that others have their turn between."""
    length = sum(map(len, parts))
    return StreamingResponse(
        _pieces(parts),
        media_type="application/json",
        headers={"Content-Length": str(length)},
    )


async def _pieces(parts: Iterable[bytes]) -> AsyncGenerator[bytes]:
    """Parts put together; others have their turn after each piece."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
            await asyncio.sleep(0)
    yield bytes(piece)


def _fields(lists: Lists) -> Iterator[bytes]:
    """Behind other fields."""
    for name, entries in lists.items():
        yield b"," + encoded(name) + b":"
        if entries is None:
            yield b"null"
        else:
            yield b"["
            yield from _separated(entries)
            yield b"]"


def _separated(entries: Iterable[bytes]) -> Iterator[bytes]:
    """Nothing is copied: several answers may have the same entries."""
    for place, entry in enumerate(entries):
        if place:
            yield b","
        yield entry
