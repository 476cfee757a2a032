"""Tries grammars in processes of their own, and remembers what came of it.

llguidance compiles most grammars in milliseconds. A few take it long, or much memory,
and a chain of 4,000 rules overflows its stack, which ends the process it runs in.
"""

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING

from fdjax.errors import RequestError
from fdjax.serve.forks import ExhaustedError, Forks, answer_calls

if TYPE_CHECKING:
    from llguidance import LLParserLimits

TRIAL_SECONDS = (0.03, 0.35, 0.6)
"""Of processor, one trial after the other: nearly all grammars take less than the
first. One between would let those that hardly need more go before others, and would
have to be waited for by all that need much more."""
SECONDS = TRIAL_SECONDS[-1]
"""Of processor: no grammar may take more."""
_TOO_MUCH = (
    f"it takes more than {SECONDS:g} seconds, or too much memory, to compile; "
    "simplify it"
)
# A quarter of what a thread of the serving process has: what fits here, fits there.
_STACK_BYTES = 2**21
_MAX_ERROR = 500
_MAX_REMEMBERED = 4096

# What is asked of a process that is no grammar of llguidance; and how it says that it
# could do so.
_GBNF, _DONE = "gbnf\n", "done\n"

type _Key = tuple[bytes, float]


def limits() -> "LLParserLimits":
    """What a grammar may take, here and where it serves."""
    from llguidance import LLParserLimits

    # A state of the lexer takes up to 2 kB.
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def readable(error: str) -> str:
    """An error of llguidance, without what only its authors can read."""
    if "NoExtensionBias" in error:
        return "no text has this form; allow some"
    return error.replace("<non-verbose/>", "").strip()[:_MAX_ERROR]


class GrammarTrial:
    """Compiles grammars elsewhere first; any thread may use it.

    A grammar that is tried already is waited for, and one that was tried is known.
    """

    def __init__(self) -> None:
        self._forks = Forks(__name__)
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, Future[str | None]] = OrderedDict()

    def start(self) -> None:
        """Starts ahead what `check` would start, and does not wait for it."""
        self._forks.start()

    def check(self, grammar: str, *, cpu_seconds: float = SECONDS) -> None:
        """Compiles a grammar, unless it is known what comes of it.

        Args:
            grammar: in llguidance's own format.
            cpu_seconds: that it may take, up to `SECONDS`.

        Raises:
            RequestError: it is wrong, or takes too much time, memory or stack.
            ExhaustedError: it takes more than `cpu_seconds`, but more may be given.
            RuntimeError: it could not be tried; the next call tries again.
        """
        if error := self._answer(grammar, cpu_seconds):
            raise RequestError(error)

    def lark(self, gbnf: str, *, cpu_seconds: float = SECONDS) -> str:
        """A grammar in GBNF as one in Lark: what rewrites it takes its time, too.

        Args:
            gbnf: the grammar.
            cpu_seconds: see `check`.

        Raises:
            RequestError: it cannot be read, or takes too much time or memory.
            ExhaustedError, RuntimeError: see `check`.
        """
        question = _GBNF + gbnf
        answer = self._answer(question, cpu_seconds)
        with self._lock:  # only what took too much is worth the room
            self._known.pop(_key(question, cpu_seconds), None)
        if not answer.startswith(_DONE):
            raise RequestError(answer)
        return answer.removeprefix(_DONE)

    def _answer(self, question: str, cpu_seconds: float) -> str:
        answer = self._outcome(question, cpu_seconds).result()
        if answer is not None:
            return answer
        if cpu_seconds < SECONDS:
            raise ExhaustedError
        raise RequestError(_TOO_MUCH)

    def _outcome(self, grammar: str, cpu_seconds: float) -> "Future[str | None]":
        """What is wrong with it, empty if nothing; `None` if it takes too much."""
        key = _key(grammar, cpu_seconds)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
            known = self._known[key] = Future()
            if len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)
        try:
            known.set_result(self._tried(grammar, cpu_seconds))
        except BaseException as error:  # no outcome: whoever asks next tries again
            with self._lock:
                self._known.pop(key, None)
            known.set_exception(error)
        return known

    def _tried(self, grammar: str, cpu_seconds: float) -> str | None:
        try:
            return self._forks.call(grammar, cpu_seconds=cpu_seconds)
        except ExhaustedError:
            return None


def _key(grammar: str, cpu_seconds: float) -> _Key:
    return hashlib.sha256(grammar.encode()).digest(), cpu_seconds


def _main() -> None:
    """Compiles what it is asked to, and says what is wrong with it."""
    from llguidance import LLMatcher, LLTokenizer
    from llguidance.gbnf_to_lark import any_to_lark

    tokenizer = LLTokenizer("byte")

    def rewritten(gbnf: str) -> str:
        try:
            return _DONE + any_to_lark(gbnf)
        except Exception as error:  # of no class of their own, or too deep
            return f"the grammar cannot be read as GBNF: {error}"[:_MAX_ERROR]

    def error(grammar: str) -> str:
        if grammar.startswith(_GBNF):
            return rewritten(grammar.removeprefix(_GBNF))
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        matcher.compute_bitmask()
        return readable(matcher.get_error())

    answer_calls(error, stack_bytes=_STACK_BYTES)


if __name__ == "__main__":
    _main()
