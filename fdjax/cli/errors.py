"""What goes wrong, told to the person at the terminal: one line and an exit code."""

import contextlib
import contextvars
import logging
import re
import warnings
from collections.abc import Collection, Generator

import typer
from rich.console import Console
from rich.text import Text

from fdjax.errors import (
    CheckpointError,
    ConfigError,
    MemoryBudgetError,
    RequestError,
    Unsupported,
)

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141

_EXPECTED = (CheckpointError, Unsupported, OSError)
# Whose messages name fields.
_OF_FIELDS = (ConfigError, MemoryBudgetError, RequestError)

_OPTIONS: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("options")
# A name of several parts that is no part of a path or of a longer name.
_FIELD = re.compile(r"(?<![\w./-])[a-z]+(_[a-z]+)+(?![\w/-]|\.\w)")


@contextlib.contextmanager
def reported(*, debug: bool) -> Generator[None]:
    """Turns what a command may raise into a message on stderr and an exit code.

    Args:
        debug: let errors pass with their traceback, and libraries talk.

    Raises:
        typer.Exit: 1 after an error of the user's or the machine's, 130 after Ctrl-C,
            141 after whoever read stdout has gone.
    """
    with contextlib.nullcontext() if debug else _libraries_quiet():
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:
            message = _message(error)
            if debug or message is None:
                raise
            show_error(message)
            raise typer.Exit(FAILED) from None


def show_error(message: str) -> None:
    """Writes one error to stderr."""
    line = Text.assemble(("error: ", "bold red"), message)
    Console(stderr=True).print(line, soft_wrap=True)


@contextlib.contextmanager
def options_of(names: Collection[str]) -> Generator[None]:
    """While a command with these options runs, `in_options` knows them."""
    token = _OPTIONS.set({name: option(name) for name in names})
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def option_names() -> tuple[str, ...]:
    """Names of the options of the command that runs."""
    return tuple(_OPTIONS.get({}))


def in_options(error: Exception) -> str:
    """An error's message, with the command's options in place of fields.

    Words of one part stay as they are: `stop` and `seed` are English, too.
    """
    options = _OPTIONS.get({})
    if "beams" in options:
        options = options | {"beam_width": option("beams")}

    def in_place(found: re.Match[str]) -> str:
        return options.get(found[0], found[0])

    return _FIELD.sub(in_place, str(error))


def option(name: str) -> str:
    """The option of a field."""
    return "--" + name.replace("_", "-")


def _message(error: Exception) -> str | None:
    """What to say about an error; `None` where it is a fault of fdjax's own."""
    if isinstance(error, _OF_FIELDS):
        return in_options(error)
    if isinstance(error, _EXPECTED):
        return str(error)
    # JAX's class may not be imported yet, and has no subclasses by status.
    text = str(error)
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in text:
        return (
            "the device ran out of memory; another process may hold some of it. "
            "Lower --memory-fraction, --max-model-len or --max-num-seqs\n"
            f"  {text.splitlines()[0]}"
        )
    return None


@contextlib.contextmanager
def _libraries_quiet() -> Generator[None]:
    """Warnings about code do not concern who runs it; those of fdjax itself stay."""
    libraries = [logging.getLogger(name) for name in ("jax", "transformers", "flax")]
    levels = [library.level for library in libraries]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library in libraries:
            library.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for library, level in zip(libraries, levels, strict=True):
                library.setLevel(level)
