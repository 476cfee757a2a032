"""Tries grammars in a process of its own, which may hang, exhaust itself or crash.

llguidance compiles most grammars in milliseconds. A few take it long, or much memory,
and a chain of 4,000 rules overflows its stack, which ends the process it runs in. So
the process forks one for each grammar, which takes milliseconds: it has llguidance
loaded, and no threads. Its own start takes 0.15 seconds, for which no request should
wait.
"""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from fdjax.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

SECONDS = 0.6
_START_SECONDS = 60.0
_MEMORY_BYTES = 2**30
# A quarter of what a thread of the serving process has: what fits here, fits there.
_STACK_BYTES = 2**21
_MAX_ERROR = 500
_TOO_MUCH = (
    f"it takes more than {SECONDS:g} seconds, or too much memory, to compile; "
    "simplify it"
)


def limits() -> "LLParserLimits":
    """What a grammar may take, here and where it serves."""
    from llguidance import LLParserLimits

    # A state of the lexer takes up to 2 kB.
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarTrial:
    """A process that compiles grammars first; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts the process, and does not wait for it; `check` would start it too."""
        with self._lock:
            self._started()

    def check(self, grammar: str) -> None:
        """Compiles a grammar there; one at a time.

        Args:
            grammar: in llguidance's own format.

        Raises:
            RequestError: it is wrong, or takes too much time, memory or stack.
            RuntimeError: there is no process; the next call starts another.
        """
        with self._lock:
            process = self._started()
            error = _answer(process, grammar)
            if error is None:
                self._process = None
                _end(process)
                raise RuntimeError("the process that tries grammars did not answer")
        if error:
            raise RequestError(error)

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the server, which may drain
            )
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # with the one that it has forked
    # It closes the pipes and waits. What was not read of a question is flushed first.
    with contextlib.suppress(BrokenPipeError), process:
        pass


def _answer(process: "subprocess.Popen[str]", grammar: str) -> str | None:
    """What is wrong with a grammar, empty if nothing; `None` if there is no answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(grammar) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    # It limits the time itself; this one is for its start.
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline() if ready else ""
    return json.loads(line) if line else None


def _tried(tokenizer: "LLTokenizer", grammar: str) -> str:
    """What is wrong with a grammar, found by a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(_error(tokenizer, grammar)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready, _, _ = select.select([pipe], [], [], SECONDS)
        answer = pipe.readline() if ready else ""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(answer) if answer else _TOO_MUCH


def _error(tokenizer: "LLTokenizer", grammar: str) -> str:
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    matcher.compute_bitmask()
    return matcher.get_error()[:_MAX_ERROR]


def _main() -> None:
    """Reads grammars, a line each, and says of each what is wrong."""
    from llguidance import LLTokenizer

    tokenizer = LLTokenizer("byte")
    for which, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_tried(tokenizer, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
