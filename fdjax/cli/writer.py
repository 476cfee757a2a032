"""Text on stdout as it comes, one prompt after the other."""

import sys
from collections.abc import Sequence

from fdjax.cli.results import Continuation

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

# A model may write anything; on a terminal, control characters would be obeyed.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))
    if chr(code) not in "\n\t"
}


def emit(text: str) -> None:
    """Writes to stdout at once; harmless on a terminal.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


class TextWriter:
    """Prints results while they grow.

    The prompts run together, but their texts cannot stand on one line: what belongs
    to a later prompt waits until those before it have ended.

    Args:
        results: one a prompt, which someone else fills.
    """

    def __init__(self, results: Sequence[Continuation]) -> None:
        self._results = results
        self._current = 0
        self._shown: int | None = None
        self._ends_line = True

    def update(self) -> None:
        """Prints what is new."""
        while self._current < len(self._results):
            result = self._results[self._current]
            self._show(result)
            if result.finish_reason is None:
                return
            self._current += 1
            self._shown = None
            self._end_line()

    def close(self) -> None:
        """Leaves the cursor at the beginning of a line."""
        self._end_line()

    def _show(self, result: Continuation) -> None:
        text = _text(result)
        if self._shown is None:
            if not text and result.finish_reason is None:
                return
            self._begin(result)
            self._shown = 0
        self._write(text[self._shown :])
        self._shown = len(text)

    def _begin(self, result: Continuation) -> None:
        if len(self._results) > 1:
            gap = "\n" if self._current else ""
            self._write(f"{gap}=== {self._current + 1}/{len(self._results)} ===\n")
        if result.prompt is None:
            return
        if sys.stdout.isatty():
            sys.stdout.write(_DIM)
        self._write(result.prompt)
        if sys.stdout.isatty():
            sys.stdout.write(_PLAIN)

    def _write(self, text: str) -> None:
        if text:
            emit(text)
            self._ends_line = text.endswith("\n")

    def _end_line(self) -> None:
        if not self._ends_line:
            self._write("\n")


def _text(result: Continuation) -> str:
    """The text, or the token ids of a model without a tokenizer."""
    if result.text is not None:
        return result.text
    return "".join(f"{token} " for token in result.token_ids)
