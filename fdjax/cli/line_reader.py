"""What is typed at the terminal: messages of a line or of several, with a history."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Generator
from dataclasses import dataclass

from fdjax.cli import progress
from fdjax.cli.writer import emit
from fdjax.errors import ConfigError
from fdjax.user_folders import user_folder

FENCE = '"""'
"""Begins and ends a message of several lines."""
MAX_HISTORY = 1000


@dataclass(frozen=True)
class Typed:
    """What was typed.

    Attributes:
        text: without the fences around it.
        fenced: it is a message, whatever it begins with.
    """

    text: str
    fenced: bool = False


def read() -> Typed | None:
    """The next message or command; `None` at the end of input.

    Raises:
        KeyboardInterrupt: at the prompt.
    """
    line = _line("> ")
    if line is None:
        return None
    stripped = line.strip()
    if not stripped.startswith(FENCE):
        return Typed(stripped)
    return Typed(_block(stripped.removeprefix(FENCE)).strip("\n"), fenced=True)


def _block(first: str) -> str:
    """The lines up to the closing fence, or the end of input."""
    lines, line = list[str](), first
    while True:
        before, found, _ = line.partition(FENCE)
        lines.append(before)
        if found:
            return "\n".join(lines)
        following = _line("... ")
        if following is None:
            return "\n".join(lines)
        line = following


def _line(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    try:
        return input(prompt)
    except EOFError:
        emit("\n")
        return None
    except KeyboardInterrupt:
        emit("\n")
        raise


@contextlib.contextmanager
def history() -> Generator[None]:
    """Keeps what is typed for the next chat, where there is a terminal and a place.

    The arrows find it again; its file is the user's alone.
    """
    try:
        import readline
    except ImportError:  # some builds of Python lack it
        yield
        return
    place = _place() if sys.stdin.isatty() else None
    if place is None:
        yield
        return
    with contextlib.suppress(OSError):  # there is none yet, or it cannot be read
        readline.read_history_file(place)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        try:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(place)
        except OSError as error:
            progress.note(f"[what was typed is not kept: {error}]")


def _place() -> pathlib.Path | None:
    try:
        folder = user_folder("XDG_STATE_HOME", ".local/state")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (ConfigError, OSError):  # a home that is read-only is no reason to stop
        return None
    return folder / "chat_history"
