"""The part of `matmul` in tables of measurements: inflection points, launch configs."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fdjax import device
from fdjax.errors import ConfigError
from fdjax.kernels.matmul.params import (
    GATED_UNIT,
    MAX_FLAT_M,
    MAX_GEMV_M,
    PADDED_M,
    FlatConfig,
)
from fdjax.kernels.tuning.files import FORMAT, ROWS, integer, places, read, unreadable


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


type Shape = tuple[int, int, str]
"""N and K of a weight, and its format: the type of its elements."""
type Table = dict[Shape, Choice]

DTYPES = ("bfloat16", "float16")
"""Formats that a row may be of; the first, where neither it nor its file says one."""


def find(n: int, k: int, dtype: jax.typing.DTypeLike) -> tuple[Choice | None, str]:
    """The row for an `[N, K]` on the device traced for, and where it stands.

    Where no table has one of bfloat16, a row of float16 will do, and the other way
    round: both are read in as many bytes, by kernels that do the same. The user's comes
    before the package's in each format.

    Args:
        n: rows of the weight.
        k: its columns.
        dtype: of its elements.

    Raises:
        ConfigError: a table of the device cannot be read.
    """
    kind, own = device.kind(), jnp.dtype(dtype).name
    for format_ in sorted(DTYPES, key=own.__ne__) if own in DTYPES else ():
        for path, name in places(kind):
            if (choice := load(path).get((n, k, format_))) is not None:
                return choice, name if format_ == own else f"{name}, of {format_}"
    of = "" if own in DTYPES else f" of {own}"
    return None, f"a heuristic: no table of {kind} has [{n}, {k}]{of}"


@functools.cache
def load(path: pathlib.Path) -> Table:
    """A device's table by shape; empty where there is none.

    Raises:
        ConfigError: the file cannot be read, lacks a field, or has a wrong value.
    """
    return parse(read(path), path)


def parse(document: Mapping[str, Any], path: pathlib.Path) -> Table:
    """The rows of a document by shape.

    Args:
        document: as it stands in the file.
        path: the file, for messages.

    Raises:
        ConfigError: a field is missing or has a wrong value.
    """
    rows = document.get(ROWS)
    if not isinstance(rows, list):
        raise unreadable(path, f"it has no list {ROWS!r}")
    table: Table = {}
    for index, row in enumerate(rows):
        where = f"{ROWS}[{index}]"
        try:
            shape = integer(row, "n", 1), integer(row, "k", 1), _dtype(row, document)
            table[shape] = _choice(row)
        except KeyError as error:
            raise unreadable(path, f"{where} has no {error}") from error
        except (TypeError, ValueError) as error:
            raise unreadable(path, f"{where}: {error}") from error
    return table


def updated(
    path: pathlib.Path, kind: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A file's document with new rows, which replace those of the same shape.

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
    new = {(row["n"], row["k"], _dtype(row, document)): row for row in rows}
    kept = [
        new.pop((row["n"], row["k"], _dtype(row, document)), row)
        for row in document[ROWS]
    ]
    return {**document, "format": FORMAT, "device": kind, ROWS: [*kept, *new.values()]}


def _dtype(row: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A row's format; where it says nothing, its file's."""
    if (name := row.get("dtype", document.get("dtype", DTYPES[0]))) not in DTYPES:
        raise ValueError(f"dtype is {name!r}; it is one of {', '.join(DTYPES)}")
    return name


def _choice(row: Any) -> Choice:
    gemv_up_to = integer(row, "gemv_up_to", 0, MAX_GEMV_M)
    flat = row["flat"]
    if not isinstance(flat, dict):
        raise ValueError("flat is no object")
    return Choice(
        gemv_up_to,
        integer(row, "flat_up_to", gemv_up_to, MAX_FLAT_M),
        {int(m): _flat(m, config, row["n"]) for m, config in flat.items()},
    )


def _flat(m: str, fields: Any, n: int) -> FlatConfig:
    if m not in map(str, PADDED_M):
        raise ValueError(f"flat has M = {m!r}; it pads to {PADDED_M}")
    try:
        config = FlatConfig(**{name: integer(fields, name, 0) for name in fields})
    except (TypeError, ValueError) as error:
        raise ValueError(f"flat[{m}]: {error}") from None
    if reason := config.problem(int(m)):
        raise ValueError(f"flat[{m}]: {reason}")
    # Of a gate, too, no more than the handler takes.
    if config.narrow > (most := -(-n // GATED_UNIT)):
        raise ValueError(
            f"flat[{m}]: narrow is {config.narrow}; of {n} rows it takes up to {most}"
        )
    return config
