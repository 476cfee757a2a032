"""Where the user's own files are."""

import os
import pathlib

from fdjax.errors import ConfigError


class NoHomeError(ConfigError):
    """The user has no home, where a file of the user's was looked for."""


def user_folder(variable: str, default: str) -> pathlib.Path:
    """The package's part of one of the user's folders, there or not.

    Args:
        variable: of the environment, which moves it.
        default: where it is in the user's home.

    Raises:
        NoHomeError: the variable is not set, and the user has no home.
    """
    if moved := os.environ.get(variable):
        return pathlib.Path(moved).expanduser() / "fdjax"
    try:
        return pathlib.Path.home() / default / "fdjax"
    except RuntimeError as error:
        raise NoHomeError(
            f"user {os.geteuid()} has no home: HOME is not set, and the system knows "
            f"none; set HOME or {variable}"
        ) from error
