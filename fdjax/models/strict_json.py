"""JSON objects of untrusted files: bounded in size, and no key twice."""

import json
import pathlib
from typing import Any

# The limit the safetensors format sets for its header; far above any real file.
MAX_JSON_BYTES = 100_000_000


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
        ValueError: it is larger than `MAX_JSON_BYTES`, or see `parse_object`.
    """
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise ValueError(f"it has {size} bytes; at most {MAX_JSON_BYTES} are read")
    return parse_object(path.read_bytes())


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"it has the key {twice!r} twice")
    return result
