"""Tries grammars in a process of its own, which may hang, exhaust itself or crash.

llguidance compiles most grammars in milliseconds. A few take it long, or much memory,
and a chain of 4,000 rules overflows its stack, which ends the process it runs in.
"""

import json
import resource
import select
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from fdjax.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLParserLimits

SECONDS = 0.6
_START_SECONDS = 60.0
_MEMORY_BYTES = 2**30
# A quarter of what a thread of the serving process has: what fits here, fits there.
_STACK_BYTES = 2**21
_MAX_ERROR = 500


def limits() -> "LLParserLimits":
    """What a grammar may take, here and where it serves."""
    from llguidance import LLParserLimits

    # A state of the lexer takes up to 2 kB.
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarTrial:
    """A process that compiles grammars first; it starts when there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def check(self, grammar: str) -> None:
        """Compiles a grammar there; one at a time.

        Args:
            grammar: in llguidance's own format.

        Raises:
            RequestError: it is wrong, or takes too much time, memory or stack.
        """
        with self._lock:
            if self._process is None:
                self._process = _start()
                weakref.finalize(self, _end, self._process)
            error = _tried(self._process, grammar)
            if error is None:
                _end(self._process)
                self._process = None
                error = (
                    f"it takes more than {SECONDS:g} seconds, or too much memory, to "
                    "compile; simplify it"
                )
        if error:
            raise RequestError(error)


def _start() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the server, which may have to drain
    )
    if _line(process, _START_SECONDS) is None:
        _end(process)
        raise RuntimeError("the process that tries grammars did not start")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # closes the pipes and waits
        pass


def _tried(process: subprocess.Popen[str], grammar: str) -> str | None:
    """What is wrong with a grammar, empty if nothing; `None` if there is no answer."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(grammar) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    return _line(process, SECONDS)


def _line(process: subprocess.Popen[str], seconds: float) -> str | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else ""
    return json.loads(line) if line else None


def _answer_all() -> None:
    """Reads grammars, a line each, and says of each what is wrong."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer, allowed = LLTokenizer("byte"), limits()
    error = ""  # the first line says that all is there
    while True:
        sys.stdout.write(json.dumps(error[:_MAX_ERROR]) + "\n")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            return
        matcher = LLMatcher(tokenizer, json.loads(line), log_level=0, limits=allowed)
        matcher.compute_bitmask()
        error = matcher.get_error()


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_answer_all)
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main()
