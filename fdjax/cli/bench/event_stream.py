"""The server-sent events of an answer, and what counts of a completion's."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

type Piece = tuple[float, bytes]


class Event(NamedTuple):
    """One event, whose last byte came at `at_s`."""

    at_s: float
    data: str


class RequestFailed(Exception):
    """A request has failed: what kind of failure, and more about it."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


class Completed(NamedTuple):
    """What counts of one event of a completion.

    Attributes:
        error: the server's message, of an event that is an error.
        has_choice: it is about a choice.
        has_text: and has text of it.
        closes: and says why it ended.
        usage: tokens of the prompt and of the output, as the server counts them.
    """

    error: str | None
    has_choice: bool
    has_text: bool
    closes: bool
    usage: tuple[int, int] | None


def events(pieces: Iterable[Piece]) -> Iterator[Event]:
    """The events of a body that came in pieces, without one that is cut short.

    Args:
        pieces: with the time of each.
    """
    rest, after_return = b"", False
    for at_s, piece in pieces:
        # "\r\n" is one line end, also where pieces part it.
        data = piece.removeprefix(b"\n") if after_return else piece
        after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = (rest + data).split(b"\n\n")
        for block in blocks:
            text = _data(block)
            if text is not None:
                yield Event(at_s, text)


def completed(data: str) -> Completed:
    """What counts of an event's data.

    Raises:
        RequestFailed: it is none of a completion.
    """
    try:
        fields = json.loads(data)
        choices = fields.get("choices") or []
        usage = fields.get("usage")
        return Completed(
            error=said(data) if "error" in fields else None,
            has_choice=bool(choices),
            has_text=any(choice.get("text") for choice in choices),
            closes=any(choice.get("finish_reason") for choice in choices),
            usage=usage and (usage["prompt_tokens"], usage["completion_tokens"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RequestFailed("malformed event", data) from None


def said(body: str) -> str:
    """The message of OpenAI's error object, or what else the server wrote."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body


def _data(block: bytes) -> str | None:
    """The data of an event's lines; `None` if there is none, as in a comment."""
    # Nearly every event is so; one line after the other takes twice as long.
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:].decode(errors="replace")
    fields = (line.partition(b":") for line in block.split(b"\n"))
    data = [value.removeprefix(b" ") for name, _, value in fields if name == b"data"]
    return b"\n".join(data).decode(errors="replace") if data else None
