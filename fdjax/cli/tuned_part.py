"""A part of a table that `fdjax tune` writes: what stood there, and what is found."""

import datetime
import pathlib
from collections.abc import Mapping
from typing import Any

from fdjax import device
from fdjax.kernels.matmul import table
from fdjax.kernels.tuning import files
from fdjax.kernels.tuning.parts import MEASURED_WITH, Part
from fdjax.version import __version__


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
