"""Messages between two processes: a head of JSON, and columns of numbers behind it."""

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

# Bytes of the whole that follow, and of the head.
_SIZES = struct.Struct("<QI")

BEAT_S = 0.5
"""Between two messages of how long the engine's step has taken so far."""
AT_ONCE = 2**18
"""Bytes that are read at a time."""

type _Typecode = Literal["B", "I", "Q", "d", "f", "q"]
type Column = "array[int] | array[float]"


@dataclass(frozen=True)
class Message:
    """What one process tells the other.

    Attributes:
        kind: says what it is about.
        fields: as JSON has them.
        columns: numbers, of which there may be many.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    columns: Sequence[Column] = ()

    def packed(self) -> bytes:
        """Its bytes; both processes are of one machine, and count in one order."""
        sizes = [(column.typecode, len(column)) for column in self.columns]
        head = json.dumps([self.kind, self.fields, sizes], separators=(",", ":"))
        parts = [head.encode(), *(column.tobytes() for column in self.columns)]
        return b"".join((_SIZES.pack(sum(map(len, parts)), len(parts[0])), *parts))


class Messages:
    """Makes messages of bytes as they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> list[Message]:
        """The messages that are whole with these bytes."""
        self._bytes += data
        whole: list[Message] = []
        begin = 0
        while len(self._bytes) - begin >= _SIZES.size:
            size, head_size = _SIZES.unpack_from(self._bytes, begin)
            end = begin + _SIZES.size + size
            if len(self._bytes) < end:
                break
            whole.append(
                _read(bytes(self._bytes[begin + _SIZES.size : end]), head_size)
            )
            begin = end
        del self._bytes[:begin]
        return whole


def _read(data: bytes, head_size: int) -> Message:
    kind, fields, sizes = json.loads(data[:head_size])
    columns: list[Column] = []
    begin = head_size
    for typecode, count in sizes:
        column: Column = array(cast("_Typecode", typecode))
        end = begin + count * column.itemsize
        column.frombytes(data[begin:end])
        columns.append(column)
        begin = end
    return Message(kind, fields, columns)
