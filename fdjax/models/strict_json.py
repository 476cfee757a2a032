"""JSON objects of untrusted files: bounded in size, and no key twice."""

import json
import pathlib
from typing import Any

from fdjax.models.regular_files import read_whole


def parse_object(text: bytes) -> dict[str, Any]:
    """Parses `text` as one JSON object.

    Raises:
        ValueError: it is not UTF-8, not JSON, not an object, nested too deeply, or an
            object in it has the same key twice (readers differ on which one counts).
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deeply to be parsed") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a JSON {type(value).__name__}, not an object")
    return value


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """Parses a whole file as one JSON object.

    Raises:
        OSError: the file cannot be read.
        ValueError: see `read_whole` and `parse_object`.
    """
    return parse_object(read_whole(path))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"it has the key {twice!r} twice")
    return result
