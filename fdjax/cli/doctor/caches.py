"""What fdjax has kept on this machine, and where."""

import os
import pathlib
from dataclasses import dataclass

from fdjax.errors import ConfigError


@dataclass(frozen=True)
class Kept:
    """A folder or a file that is kept between runs.

    Attributes:
        what: is kept there.
        place: its path.
        count: of entries; 0 where there is nothing yet.
        num_bytes: of them; `None` where it is not looked at.
        problem: why it cannot be used, or `None`.
    """

    what: str
    place: str
    count: int
    num_bytes: int | None
    problem: str | None


def kept(kind: str | None) -> list[Kept]:
    """Compiled programs, models of the hub, and the tuned table.

    Args:
        kind: the device's name, whose table is looked for; `None` where there is none.
    """
    found = [_programs(), _models()]
    return found if kind is None else [*found, _table(kind)]


def _programs() -> Kept:
    from fdjax.serve import compilation_cache

    what = "compiled programs"
    try:
        folder = compilation_cache.default_folder()
    except ConfigError as error:
        return Kept(what, "nowhere", 0, None, str(error))
    try:
        status = folder.stat()
        files = [file.stat() for file in os.scandir(folder)]
    except FileNotFoundError:
        return Kept(what, str(folder), 0, 0, None)
    except OSError as error:
        return Kept(what, str(folder), 0, None, f"it cannot be read: {error.strerror}")
    problem = compilation_cache.refuse(folder, status)
    return Kept(what, str(folder), len(files), sum(f.st_size for f in files), problem)


def _models() -> Kept:
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = pathlib.Path(HF_HUB_CACHE)
    count = len(list(folder.glob("models--*")))
    return Kept("models of the hub", str(folder), count, None, None)


def _table(kind: str) -> Kept:
    from fdjax.kernels import chip
    from fdjax.kernels.decode_attention import table as attention
    from fdjax.kernels.layer_program import table as chain
    from fdjax.kernels.matmul import table
    from fdjax.kernels.shared_prefix import table as shared
    from fdjax.kernels.tuning import files

    what = "tuned table"
    try:
        place = files.user_path(kind)
    except ConfigError as error:
        return Kept(what, "nowhere", 0, None, str(error))
    if not place.is_file():
        return Kept(what, str(place), 0, 0, None)
    try:
        found, problem = table.load(place), None
        for part in (chip.PART, attention.PART, chain.PART, shared.PART):
            part.load(place)
    except ConfigError as error:
        found, problem = {}, str(error)
    return Kept(what, str(place), len(found), place.stat().st_size, problem)
