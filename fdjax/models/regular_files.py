"""Files of strangers: it is known what they are before they are opened."""

import fnmatch
import pathlib
import stat
from collections.abc import Sequence

MAX_BYTES = 100_000_000
"""Of a file that is read whole: what the safetensors format allows its header, and far
above any real configuration or tokenizer."""


def regular_bytes(path: pathlib.Path) -> int:
    """The size of a file, which is not opened for it.

    Raises:
        OSError: there is none.
        ValueError: it is not regular: opening a pipe would wait for its writer, and
            reading a device might not end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    return status.st_size


def read_whole(path: pathlib.Path) -> bytes:
    """What a file holds.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not regular, or larger than `MAX_BYTES`.
    """
    _check_size(path)
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def check_folder(
    folder: pathlib.Path, *, whole: Sequence[str], mapped: Sequence[str]
) -> None:
    """Checks all files of a folder that a library might open unasked.

    Args:
        folder: of a model.
        whole: patterns of files that are read whole.
        mapped: patterns of files that are read in parts, and may have any size.

    Raises:
        ValueError: one is not regular, or too large; the message has its name.
    """
    for path in sorted(folder.iterdir()):
        if not path.exists() or path.is_dir():  # a link that leads nowhere, say
            continue
        try:
            if _matches(path, whole):
                _check_size(path)
            elif _matches(path, mapped):
                regular_bytes(path)
        except ValueError as error:
            raise ValueError(f"{path.name} cannot be read: {error}") from None


def _check_size(path: pathlib.Path) -> None:
    size = regular_bytes(path)
    if size > MAX_BYTES:
        raise ValueError(f"it has {size} bytes; at most {MAX_BYTES} are read")


def _matches(path: pathlib.Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)
