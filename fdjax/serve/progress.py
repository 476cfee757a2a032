"""What is shown on stderr while something takes long: bars only on a terminal."""

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text


class _SpeedColumn(ProgressColumn):
    """Tokens per second, over all of the time."""

    def render(self, task: Task) -> Text:
        seconds, tokens = task.elapsed or 0.0, task.fields["tokens"]
        return Text(f"{tokens / seconds:.0f} tok/s" if seconds and tokens else "")


@contextlib.contextmanager
def generating(total: int) -> Generator[Callable[[int, bool], None]]:
    """A bar of requests; yields what takes new tokens, and whether one has ended."""
    with bars(*_STEPS, _SpeedColumn()) as shown:
        task = shown.add_task("generating", total=total, tokens=0)
        tokens = 0

        def report(num_tokens: int, ended: bool) -> None:
            nonlocal tokens
            tokens += num_tokens
            shown.update(task, advance=int(ended), tokens=tokens)

        yield report


@contextlib.contextmanager
def compiling() -> Generator[Callable[[int, int], None]]:
    """A bar of programs, and a line at the end; yields what takes done and total."""
    start, count = time.monotonic(), 0
    with bars(*_STEPS) as shown:
        task = shown.add_task("compiling", total=None)

        def report(done: int, total: int) -> None:
            nonlocal count
            count = done
            shown.update(task, completed=done, total=total)

        yield report
    note(f"[{count} programs ready after {time.monotonic() - start:.1f} s]")


def note(message: str) -> None:
    """One dim line on stderr, terminal or not."""
    Console(stderr=True).print(Text(message, style="dim"), soft_wrap=True)


def bars(*columns: ProgressColumn) -> Progress:
    """Bars that vanish at their end; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,  # stdout belongs to the text, wherever it goes
    )


_STEPS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)
