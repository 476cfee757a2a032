"""Bytes as people write them."""

import re

import typer

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**i for i, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of "141GB", "80GiB", "1.5 TB" or "1000000".

    Raises:
        typer.BadParameter: it is none of these, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None or float(match[1]) == 0:
        raise typer.BadParameter(
            f"{text!r} is no size; write it like 141GB, 80GiB or 1000000 (bytes)"
        )
    return int(float(match[1]) * unit)
