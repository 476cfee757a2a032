"""A part of a table that `fdjax tune` writes: what stood there, and what is found."""

import datetime
import pathlib
from collections.abc import Mapping
from typing import Any

from fdjax import device
from fdjax.errors import ConfigError
from fdjax.kernels import chip
from fdjax.kernels.decode_attention import table as attention
from fdjax.kernels.layer_program import table as chain
from fdjax.kernels.matmul import table
from fdjax.kernels.shared_prefix import table as shared
from fdjax.kernels.tuning import files
from fdjax.kernels.tuning.parts import MEASURED_WITH, Part
from fdjax.version import __version__


def check_table(path: pathlib.Path, *, is_named: bool) -> None:
    """Makes sure that a file is a table which can be added to, where it is there.

    The error for one that is not says elsewhere to run `fdjax tune`, which is what
    asks here.

    Args:
        path: of the table.
        is_named: by `--out`; else it is the user's.

    Raises:
        ConfigError: it cannot be read, or is no table.
    """
    try:
        table.parse(files.read(path), path)
        for part in (chip.PART, attention.PART, shared.PART, chain.PART):
            part.load(path)
    except ConfigError as error:
        found, _, _ = str(error).rpartition("; ")
        remedy = "give another --out" if is_named else "delete it, or give an --out"
        raise ConfigError(f"{found}; {remedy}") from error


def before[T](path: pathlib.Path, part: Part[T]) -> T:
    """What stands in the table, or else holds for the device.

    Raises:
        ConfigError: the table cannot be read.
    """
    found = part.load(path)
    return part.find() if found is None else found


def write(
    path: pathlib.Path, part: Part[Any], fields: Mapping[str, Any], how: str
) -> None:
    """Adds a part to a device's table, in place of the one that stands there.

    Args:
        path: of the table.
        part: whose fields they are.
        fields: as the file has them.
        how: they were measured.

    Raises:
        ConfigError: the file cannot be read, or is another device's.
    """
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    told = {MEASURED_WITH: f"fdjax tune {__version__}, {today}: {how}"}
    document = table.updated(path, device.kind(), []) | {part.name: {**fields, **told}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(files.to_json(document))
    part.load.cache_clear()  # it has been read, as it was
