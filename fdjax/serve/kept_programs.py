"""Looks after a folder of compiled programs, as JAX keeps them."""

import logging
import pathlib
import tempfile
import threading
import time
from typing import Any

import jax.monitoring

_LOGGER = logging.getLogger(__name__)

# A file of a program, and one of when it was last read: nanoseconds, eight bytes.
_PROGRAM, _READ = "-cache", "-atime"
# Most programs are smaller.
_PROBE_BYTES = 2**22


class KeptPrograms:
    """Takes out programs that cannot be read, and says when none can be kept.

    JAX compiles anew what it cannot read, and leaves it where it is, for every start
    to come. It tells when it looks for a program, and when it is about to write one: if
    it has read one between, that one was of no use.
    """

    def __init__(self) -> None:
        self._folder: pathlib.Path | None = None
        self._asked = threading.local()
        self._said = False

    def watch(self, folder: pathlib.Path) -> None:
        """Looks after this folder from now on, and no other."""
        if self._folder is None:
            jax.monitoring.register_event_listener(self._note)
        self._folder, self._said = folder, False

    def _note(self, event: str, **kwargs: Any) -> None:
        del kwargs
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            self._asked.ns = time.time_ns()
        elif event == "/jax/compilation_cache/cache_misses" and self._folder:
            try:
                _forget_read(self._folder, since_ns=getattr(self._asked, "ns", 0))
                _probe(self._folder)
            except OSError as error:
                self._say(self._folder, error)

    def _say(self, folder: pathlib.Path, error: OSError) -> None:
        if not self._said:
            self._said = True
            _LOGGER.warning(
                "compiled programs cannot be kept in %s: %s", folder, error.strerror
            )


def _forget_read(folder: pathlib.Path, *, since_ns: int) -> None:
    """Deletes the program that was read last, if one was read since then."""
    read = {path: _read_ns(path) for path in folder.glob(f"*{_READ}")}
    path = max(read, key=lambda path: read[path], default=None)
    if path is None or read[path] < since_ns:
        return
    program = path.with_name(path.name.removesuffix(_READ) + _PROGRAM)
    _LOGGER.warning(
        "a compiled program of %d bytes cannot be read; it is compiled anew: %s",
        program.stat().st_size if program.exists() else 0,
        program,
    )
    program.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _read_ns(path: pathlib.Path) -> int:
    try:
        return int.from_bytes(path.read_bytes(), "little")
    except OSError:  # another process has just deleted it
        return -1


def _probe(folder: pathlib.Path) -> None:
    """Fails where a program could not be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
