"""Tables of inflection points: those of the package, the user's, and their format.

A table is a JSON file for one device. The package has some; what `fdjax tune` measures
goes to the user's folder, whose rows come before the package's.
"""

import contextlib
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdjax import device
from fdjax.errors import ConfigError
from fdjax.kernels.matmul.params import MAX_FLAT_M, MAX_GEMV_M, PADDED_M, FlatConfig
from fdjax.user_folders import NoHomeError, user_folder

SHIPPED = pathlib.Path(__file__).parent / "tuned"


@dataclass(frozen=True)
class Choice:
    """The inflection points of one `[N, K]`.

    Attributes:
        gemv_up_to: M1: `gemv` serves M up to here; 0: never.
        flat_up_to: M2: `flat` serves M from M1 + 1 up to here.
        flat: the launch config of `flat` by padded M.
    """

    gemv_up_to: int
    flat_up_to: int
    flat: dict[int, FlatConfig]


type Table = dict[tuple[int, int], Choice]


def find(n: int, k: int) -> tuple[Choice | None, str]:
    """The row for an `[N, K]` on the device traced for, and where it stands.

    Raises:
        ConfigError: a table of the device cannot be read.
    """
    kind = device.kind()
    places = [(SHIPPED / _name(kind), f"the tuned table of {kind}")]
    with contextlib.suppress(NoHomeError):  # nor a table of the user's
        user = user_path(kind)
        places.insert(0, (user, f"the user's table {user}"))
    for path, name in places:
        if (choice := load(path).get((n, k))) is not None:
            return choice, name
    return None, f"a heuristic: no table of {kind} has [{n}, {k}]"


def user_path(kind: str) -> pathlib.Path:
    """Where the user's table of a device is, there or not.

    `XDG_CONFIG_HOME` moves the folder.

    Raises:
        NoHomeError: the user has none.
    """
    return user_folder("XDG_CONFIG_HOME", ".config") / "tuned" / _name(kind)


def _name(kind: str) -> str:
    """Of a device's table."""
    return f"{kind.lower().replace(' ', '-')}.json"


@functools.cache
def load(path: pathlib.Path) -> Table:
    """A device's table by `[N, K]`; empty where there is none.

    Raises:
        ConfigError: the file cannot be read, lacks a field, or has a wrong value.
    """
    return parse(read(path), path)


def read(path: pathlib.Path) -> dict[str, Any]:
    """A table's document, unchecked but for its outline; one without rows if missing.

    Raises:
        ConfigError: the file cannot be read, or is no JSON object.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"shapes": []}
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(document, dict):
        raise _unreadable(path, "it holds no JSON object")
    return document


def parse(document: Mapping[str, Any], path: pathlib.Path) -> Table:
    """The rows of a document by `[N, K]`.

    Args:
        document: as it stands in the file.
        path: the file, for messages.

    Raises:
        ConfigError: a field is missing or has a wrong value.
    """
    rows = document.get("shapes")
    if not isinstance(rows, list):
        raise _unreadable(path, "it has no list 'shapes'")
    table: Table = {}
    for index, row in enumerate(rows):
        where = f"shapes[{index}]"
        try:
            shape = _integer(row, "n", 1), _integer(row, "k", 1)
            table[shape] = _choice(row)
        except KeyError as error:
            raise _unreadable(path, f"{where} has no {error}") from error
        except (TypeError, ValueError) as error:
            raise _unreadable(path, f"{where}: {error}") from error
    return table


def updated(
    path: pathlib.Path, kind: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A file's document with new rows, which replace those of the same `[N, K]`.

    Raises:
        ConfigError: the file cannot be read, or is another device's.
    """
    document = read(path)
    parse(document, path)
    if (other := document.get("device", kind)) != kind:
        raise ConfigError(
            f"the table {path} is of {other}, and this device is {kind}; write to "
            "another file"
        )
    new = {(row["n"], row["k"]): row for row in rows}
    kept = [new.pop((row["n"], row["k"]), row) for row in document["shapes"]]
    return {**document, "device": kind, "shapes": [*kept, *new.values()]}


def to_json(document: Mapping[str, Any]) -> str:
    """A document as its file has it: a row a line."""
    others = {name: value for name, value in document.items() if name != "shapes"}
    head = "".join(f' "{n}": {json.dumps(value)},\n' for n, value in others.items())
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["shapes"])
    return f'{{\n{head} "shapes": [\n{rows}\n ]\n}}\n'


def _choice(row: Any) -> Choice:
    gemv_up_to = _integer(row, "gemv_up_to", 0, MAX_GEMV_M)
    flat = row["flat"]
    if not isinstance(flat, dict):
        raise ValueError("flat is no object")
    return Choice(
        gemv_up_to,
        _integer(row, "flat_up_to", gemv_up_to, MAX_FLAT_M),
        {int(m): _flat(m, config) for m, config in flat.items()},
    )


def _flat(m: str, fields: Any) -> FlatConfig:
    if m not in map(str, PADDED_M):
        raise ValueError(f"flat has M = {m!r}; it pads to {PADDED_M}")
    try:
        config = FlatConfig(**{name: _integer(fields, name, 0) for name in fields})
    except (TypeError, ValueError) as error:
        raise ValueError(f"flat[{m}]: {error}") from None
    if reason := config.problem(int(m)):
        raise ValueError(f"flat[{m}]: {reason}")
    return config


def _integer(row: Any, name: str, low: int, high: int | None = None) -> int:
    value = row[name]
    if type(value) is not int or value < low or (high is not None and value > high):
        bound = f"from {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; it is a whole number {bound}")
    return value


def _unreadable(path: pathlib.Path, what: str) -> ConfigError:
    return ConfigError(
        f"the table {path} cannot be read: {what}; delete it, or make it anew with "
        "`fdjax tune`"
    )
