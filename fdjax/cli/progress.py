"""What a command shows on stderr while it works: nothing unless it is a terminal."""

import contextlib
from collections.abc import Callable, Generator

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from fdjax.serve.progress import bars, note

__all__ = [
    "OnPrograms",
    "Waiting",
    "counting",
    "loading",
    "loading_first",
    "note",
    "stepping",
]


class _TokensColumn(ProgressColumn):
    """Tokens done, of how many, and how fast."""

    def render(self, task: Task) -> Text:
        speed = f", {task.speed:.0f} tok/s" if task.speed else ""
        return Text(f"{task.completed:.0f}/{task.total or 0:.0f} tokens{speed}")


@contextlib.contextmanager
def loading(name: str) -> Generator[Callable[[int, int, str], None]]:
    """A bar of bytes; yields what `fdjax.models.load` reports to."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with bars(*columns) as shown:
        task = shown.add_task(f"loading {name}", total=None)

        def report(done_bytes: int, total_bytes: int, _: str) -> None:
            shown.update(task, completed=done_bytes, total=total_bytes)

        yield report


type OnPrograms = Callable[[int, int], None]


@contextlib.contextmanager
def loading_first(
    name: str, then: Callable[[], contextlib.AbstractContextManager[OnPrograms]]
) -> Generator[tuple[Callable[[int, int, str], None], OnPrograms]]:
    """A bar of bytes until programs are reported; yields what both are reported to.

    Args:
        name: of the model.
        then: gives what programs are reported to from then on.
    """
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        loaded = first.enter_context(loading(name))
        compiled: OnPrograms | None = None

        def report(done: int, in_all: int) -> None:
            nonlocal compiled
            if compiled is None:
                first.close()
                compiled = second.enter_context(then())
            compiled(done, in_all)

        yield loaded, report


class Waiting:
    """A spinner while the first tokens are awaited: mostly, programs compile.

    A context manager that may also be ended early; both ends clear the line.
    """

    def __init__(self, description: str) -> None:
        self._stack = contextlib.ExitStack()
        self._description = description

    def __enter__(self) -> "Waiting":
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        shown = self._stack.enter_context(bars(*columns))
        shown.add_task(self._description, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Clears the spinner, once."""
        self._stack.close()


@contextlib.contextmanager
def counting(total_tokens: int, description: str) -> Generator[Callable[[int], None]]:
    """A bar of tokens; yields a function to call with the number of new ones."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _TokensColumn(),
    )
    with bars(*columns) as shown:
        task = shown.add_task(description, total=total_tokens)
        yield lambda num_tokens: shown.advance(task, num_tokens)


@contextlib.contextmanager
def stepping(total: int, description: str) -> Generator[Callable[[], None]]:
    """A bar of steps; yields a function to call after each."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with bars(*columns) as shown:
        task = shown.add_task(description, total=total)
        yield lambda: shown.advance(task)
