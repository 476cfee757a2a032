"""Where a command is to write, looked at before it works for minutes."""

import pathlib

from fdjax.errors import ConfigError


def check_places(out: pathlib.Path | None, plot: pathlib.Path | None) -> None:
    """Makes sure that a file and a picture can be written, where they are wanted.

    Raises:
        ConfigError: a folder is missing, or is where a file should be; or the picture
            cannot be drawn.
    """
    for path in (out, plot):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise ConfigError(f"{path.parent} is no folder; make it first")
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file in it")
    if plot is not None:
        from fdjax.cli.plots import check_plots

        check_plots(plot)
