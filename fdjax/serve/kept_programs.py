"""Looks after a folder of compiled programs, as JAX keeps them."""

import logging
import pathlib
import tempfile
import threading
from typing import Any, override

import jax.monitoring

_LOGGER = logging.getLogger(__name__)

# A file of a program, and one of when it was last read.
_PROGRAM, _READ = "-cache", "-atime"
# Most programs are smaller.
_PROBE_BYTES = 2**22
_MISS = "PERSISTENT COMPILATION CACHE MISS"


class _Missed(logging.Filter):
    """Notes which program a thread did not find: JAX says it in its log alone.

    What its log shows is what it showed before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()
        jax_log = logging.getLogger("jax._src.compiler")
        self._shown = jax_log.getEffectiveLevel()
        jax_log.setLevel(logging.DEBUG)
        jax_log.addFilter(self)

    @property
    def key(self) -> str | None:
        """Of the last program that this thread did not find."""
        return getattr(self._of_thread, "key", None)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the log shows a record."""
        if str(record.msg).startswith(_MISS) and isinstance(record.args, tuple):
            self._of_thread.key = str(record.args[-1])
        return record.levelno >= self._shown


class KeptPrograms:
    """Takes out programs that cannot be read, and says when none can be kept.

    JAX compiles anew what it cannot read, and leaves it where it is, for every start
    to come. It tells when it is about to write a program: if that one is there, it was
    of no use. Programs are compiled and written in several threads.
    """

    def __init__(self) -> None:
        self._folder: pathlib.Path | None = None
        self._missed: _Missed | None = None
        self._said = False

    def watch(self, folder: pathlib.Path) -> None:
        """Looks after this folder from now on, and no other."""
        if self._missed is None:
            self._missed = _Missed()
            jax.monitoring.register_event_listener(self._note)
        self._folder, self._said = folder, False

    def _note(self, event: str, **kwargs: Any) -> None:
        del kwargs
        if event != "/jax/compilation_cache/cache_misses" or not self._folder:
            return
        key = self._missed and self._missed.key
        try:
            if key:
                _forget(self._folder / f"{key}{_PROGRAM}")
            _probe(self._folder)
        except OSError as error:
            self._say(self._folder, error)

    def _say(self, folder: pathlib.Path, error: OSError) -> None:
        if not self._said:
            self._said = True
            _LOGGER.warning(
                "compiled programs cannot be kept in %s: %s", folder, error.strerror
            )


def _forget(program: pathlib.Path) -> None:
    """Deletes a program that is there, and was compiled all the same."""
    if not program.exists():
        return
    _LOGGER.warning(
        "a compiled program of %d bytes cannot be read; it is compiled anew: %s",
        program.stat().st_size,
        program,
    )
    program.unlink(missing_ok=True)
    name = program.name.removesuffix(_PROGRAM)
    program.with_name(f"{name}{_READ}").unlink(missing_ok=True)


def _probe(folder: pathlib.Path) -> None:
    """Fails where a program could not be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
