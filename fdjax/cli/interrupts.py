"""Ctrl-C while a command starts, which some of what it imports would swallow."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def kept() -> Generator[None]:
    """Inside a `with` block: Ctrl-C ends it at once, or at its end at the latest.

    `KeyboardInterrupt` may come while an extension is initialised or an object is
    deleted: then it is another error, or a line on stderr. Where Ctrl-C is ignored or
    handled otherwise, it stays so.

    Raises:
        KeyboardInterrupt: there was one.
    """
    python = signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not python:
        yield
        return
    came = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.set()
        python(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if came.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, python)
    if came.is_set():
        raise KeyboardInterrupt
