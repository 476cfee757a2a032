"""Options that take one of a few words."""

import difflib
import typing
from typing import Any

import typer


def one_of(literal: Any) -> dict[str, Any]:
    """Arguments of `typer.Option` for a `Literal`: a wrong word is told with the right.

    typer reads `Literal` by itself, and says "Value error" first.

    Args:
        literal: of texts.
    """
    words: tuple[str, ...] = typing.get_args(literal)

    def parse(given: str) -> str:
        if given in words:
            return given
        near = difflib.get_close_matches(given, words, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"{given!r} is none of {', '.join(words)}{hint}")

    return {"parser": parse, "metavar": f"[{'|'.join(words)}]"}
