"""Files of measurements: where they lie, their outline, and errors that name them.

The package has some; what `fdjax tune` measures goes to the user's folder, and what
stands there comes before the package's.
"""

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fdjax.errors import ConfigError
from fdjax.user_folders import NoHomeError, user_folder

FORMAT = 1
"""Of the outline; a file without this field is of the first."""

ROWS = "shapes"
"""The part of `matmul`: a list, which is written a row a line."""

_CONFIG_HOME = "XDG_CONFIG_HOME"
"""The variable of the environment that moves the user's folder from HOME."""

SHIPPED = pathlib.Path(__file__).parent / "tables"


def places(kind: str) -> Sequence[tuple[pathlib.Path, str]]:
    """Where tables of a device are, there or not, and their names; the first counts.

    Args:
        kind: the device's name, as JAX has it.
    """
    # Asked some twenty times in every trace, and paths take as long as to trace an add.
    return _places(kind, *map(os.environ.get, (_CONFIG_HOME, "HOME")))


@functools.cache
def _places(kind: str, *moved_by: str | None) -> list[tuple[pathlib.Path, str]]:
    """As `places`; the user's folder follows from `moved_by`."""
    del moved_by
    found = [(SHIPPED / _name(kind), f"the tuned table of {kind}")]
    with contextlib.suppress(NoHomeError):  # nor a table of the user's
        user = user_path(kind)
        found.insert(0, (user, f"the user's table {user}"))
    return found


def user_path(kind: str) -> pathlib.Path:
    """Where the user's table of a device is, there or not.

    `XDG_CONFIG_HOME` moves the folder.

    Raises:
        NoHomeError: the user has none.
    """
    return user_folder(_CONFIG_HOME, ".config") / "tuned" / _name(kind)


def _name(kind: str) -> str:
    """Of a device's table."""
    return f"{kind.lower().replace(' ', '-')}.json"


def read(path: pathlib.Path) -> dict[str, Any]:
    """A table's document, unchecked but for its outline; one without rows if missing.

    Raises:
        ConfigError: the file cannot be read, is no JSON object, or of another format.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"format": FORMAT, ROWS: []}
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, str(error)) from error
    if not isinstance(document, dict):
        raise unreadable(path, "it holds no JSON object")
    version = document.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise unreadable(
            path, f"it is of format {version!r}, and this fdjax reads {FORMAT}"
        )
    return document


def to_json(document: Mapping[str, Any]) -> str:
    """A document as its file has it: a row a line."""
    others = {name: value for name, value in document.items() if name != ROWS}
    head = "".join(f' "{n}": {json.dumps(value)},\n' for n, value in others.items())
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document[ROWS])
    return f'{{\n{head} "{ROWS}": [\n{rows}\n ]\n}}\n'


def integer(row: Any, name: str, low: int, high: int | None = None) -> int:
    """A field of a row.

    Raises:
        KeyError: there is none.
        ValueError: it is no whole number from `low` to `high`.
    """
    value = row[name]
    if type(value) is not int or value < low or (high is not None and value > high):
        bound = f"from {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; it is a whole number {bound}")
    return value


def unreadable(path: pathlib.Path, what: str) -> ConfigError:
    """The error for a file that does not hold what it should."""
    return ConfigError(
        f"the table {path} cannot be read: {what}; delete it, or make it anew with "
        "`fdjax tune`"
    )
