"""Starts an engine's process, and waits until its model is ready."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from fdjax.serve.apart.line import Line
from fdjax.serve.apart.wire import Message

if TYPE_CHECKING:
    from fdjax.serve.apart.client import EngineProcess

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartError(Exception):
    """The process has ended before its model was ready, and has said why on stderr.

    Attributes:
        status: of the process, as `subprocess` has it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the engine's process ended with status {status}")
        self.status = status


class Launched:
    """A process that imports what an engine needs, and loads a model when it is told.

    It ends when this process does, however that ends: its end of the line is closed
    then. Signals are for this process alone.

    Args:
        module: run in the process; it calls `ignore_signals` and then `host`.
        environment: of the process, by default this one's.
    """

    def __init__(
        self, module: str, environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _signals_kept():
            self._process = subprocess.Popen(
                [sys.executable, *_flags(), "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self._line = Line(ours)

    def begin(self, options: Mapping[str, Any]) -> None:
        """Has a model loaded.

        Args:
            options: which, and how; sent, as arguments of a process can be read.
        """
        self._line.send(Message("start", {"options": dict(options)}))

    def ready(self) -> "tuple[EngineProcess, dict[str, Any]]":
        """The engine, and facts of its model, once it is ready.

        Raises:
            StartError: the process has ended before.
        """
        from fdjax.serve.apart.client import EngineProcess  # takes JAX's seconds

        try:
            message = self._line.first()
        except EOFError:
            raise StartError(self._process.wait()) from None
        engine = EngineProcess(self._line, self._process, message)
        return engine, message.fields["facts"]

    def end(self) -> None:
        """Ends the process at once, if it has not ended; nobody is served by it."""
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def ignore_signals() -> None:
    """Leaves signals to the front, which drains: this process ends when that does.

    It is called by the process that is started.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _flags() -> list[str]:
    """Nothing is imported from where this process runs, unless fdjax itself was."""
    here = pathlib.Path(__file__).parents[3] == pathlib.Path.cwd()
    return [] if here else ["-P"]


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """No signal comes meanwhile; a process that is started finds them blocked, too.

    It says what it does with them before it lets them come.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
