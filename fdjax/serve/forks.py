"""Calls that may hang, exhaust themselves or crash, each in a process of its own.

A process that has loaded what the calls need forks one for each, which takes
milliseconds: it has no threads. The kernel ends a call that takes too long, by timers
that the call's process sets before it reads what it is asked. Time is that of the
processor, so that a busy machine refuses nothing that an idle one would take.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Beside what was loaded already; and on the clock, for what waits instead of working.
_MEMORY_BYTES = 2**29
_CLOCK_SECONDS = 30.0
_START_SECONDS = 60.0
_MAX_ANSWER_BYTES = 2**26
# On a CPU, the engine goes first.
_NICENESS = 5
# Who may take longer goes behind those that may not.
_SHORT_SECONDS = 0.1
_BEGUN = b"+"
_SECONDS = struct.Struct("d")


class ExhaustedError(Exception):
    """A call took more time, memory or stack than it may."""


class Forks:
    """A process that forks others; any thread may use it.

    Args:
        module: run in the process; it calls `answer_calls`.
        arguments: of its command line.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def start(self) -> None:
        """Starts the process, and does not wait for it; `call` would start it too."""
        with self._lock:
            self._started()

    def call(self, question: object, *, cpu_seconds: float) -> Any:
        """Has a question answered; as many at once as there are threads that ask.

        Args:
            question: as JSON has it.
            cpu_seconds: that the answer may take.

        Returns:
            The answer, as JSON has it.

        Raises:
            ExhaustedError: it takes too much time, memory or stack.
            RuntimeError: there is no process; the next call starts another.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                process = self._started()
                process.send(theirs, cpu_seconds)
            if not self._has_begun(ours, process):
                raise RuntimeError("the process that was asked did not answer")
            try:
                return _answer(ours, question)
            except ExhaustedError:
                if self._still_forks(process):
                    raise
                raise RuntimeError("the process that was asked has ended") from None

    def _still_forks(self, process: "_Process") -> bool:
        """It was the call's own process that ended, and not all of them together."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                process.send(theirs, _SHORT_SECONDS)
            return self._has_begun(ours, process)

    def _has_begun(self, ours: socket.socket, process: "_Process") -> bool:
        ours.settimeout(_START_SECONDS)
        try:
            return ours.recv(1) == _BEGUN
        except TimeoutError:
            process.end()
            return False
        except OSError:
            return False

    def _started(self) -> "_Process":
        if self._process is None or not self._process.is_alive():
            self._process = _Process(self._command)
            weakref.finalize(self, self._process.end)
        return self._process


class _Process:
    """The one that forks, as its owner sees it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the server, which may drain
            )

    def is_alive(self) -> bool:
        """It has not ended."""
        if self._socket.fileno() == -1 or self.popen.poll() is not None:
            return False
        # It says nothing there, but closes it when it ends, before that is known.
        return not select.select([self._socket], [], [], 0)[0]

    def send(self, theirs: socket.socket, cpu_seconds: float) -> None:
        """Gives it one end of a call's socket; at the other, errors will be known."""
        with contextlib.suppress(OSError):
            head = _SECONDS.pack(cpu_seconds)
            socket.send_fds(self._socket, [head], [theirs.fileno()])

    def end(self) -> None:
        """Ends it, with all that it has forked."""
        self._socket.close()
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def _answer(connection: socket.socket, question: object) -> Any:
    """What a call's process says, which has begun."""
    try:
        connection.settimeout(2 * _CLOCK_SECONDS)
        connection.sendall(json.dumps(question).encode())
        connection.shutdown(socket.SHUT_WR)
        return json.loads(_all_of(connection, at_most=_MAX_ANSWER_BYTES))
    except (OSError, ValueError) as error:  # it ended before its answer did
        raise ExhaustedError from error


def _all_of(connection: socket.socket, *, at_most: int) -> bytes:
    whole = bytearray()
    while part := connection.recv(2**16):
        whole += part
        if len(whole) > at_most:
            raise ExhaustedError
    return bytes(whole)


def answer_calls(answer: Callable[[Any], object], *, stack_bytes: int) -> None:
    """Answers the calls of a `Forks`, whose process this is, until it ends.

    Args:
        answer: what it says to a question, as JSON has both. What it raises is taken
            for exhaustion.
        stack_bytes: of an answer.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    os.nice(_NICENESS)
    for which, most in (
        (resource.RLIMIT_AS, _loaded_bytes() + _MEMORY_BYTES),
        (resource.RLIMIT_STACK, stack_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, allowed = resource.getrlimit(which)
        bound = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(which, (bound, bound))
    with socket.socket(fileno=sys.stdin.fileno()) as calls:
        while True:
            head, handles, _, _ = socket.recv_fds(
                calls, _SECONDS.size, 1, socket.MSG_WAITALL
            )
            if not handles:
                return
            with (
                socket.socket(fileno=handles[0]) as connection,
                contextlib.suppress(OSError),  # no process more: the caller is told
            ):
                if os.fork() == 0:
                    calls.close()
                    _answer_one(connection, answer, *_SECONDS.unpack(head))


def _answer_one(
    connection: socket.socket, answer: Callable[[Any], object], cpu_seconds: float
) -> NoReturn:
    try:
        if cpu_seconds > _SHORT_SECONDS:
            os.nice(_NICENESS)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, _CLOCK_SECONDS)
        connection.sendall(_BEGUN)
        question = json.loads(_all_of(connection, at_most=_MAX_ANSWER_BYTES))
        connection.sendall(json.dumps(answer(question)).encode())
    finally:
        os._exit(0)


def _loaded_bytes() -> int:
    """Of address space in use, where the system says so."""
    with contextlib.suppress(OSError), Path("/proc/self/statm").open("rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0
