"""Tokens made text one by one, at a cost that does not grow with what came before."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence

# What decoders write for bytes that are no character, or not one yet.
_BROKEN = "\ufffd"

# Characters have up to four bytes: the last three tokens may become part of one.
_OPEN = 3

# What is kept of a prompt, and of a text that is let out: whether the next word begins
# with a space depends on what is before it.
_CONTEXT = 8

# Tokens that wait at most: four make a character, but those that end inside the next
# one wait with it.
_MAX_HELD = 16


class TextStream:
    """Makes text of the tokens that follow a prompt; a character is never split.

    The last tokens are decoded with and without the next one, and the difference is its
    text (as in vLLM and TGI). What ends inside a character waits, but never more than
    16 tokens: bytes that are no character are let out then.

    Args:
        decode: text of token ids, special tokens left out.
        prompt: the token ids that come before.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int]
    ) -> None:
        self._decode = decode
        # Tokens at hand, how many of them do not wait, and how the text of all begins.
        self._ids, self._num_settled, settled = _end_of(prompt, decode)
        self._before = settled
        if self._num_settled < len(self._ids):
            self._before = decode(self._ids)
        # Or how, once the character that the prompt ends inside is whole.
        self._instead: tuple[str, ...] = ()
        if self._before.endswith(_BROKEN):
            others = (self._before.rstrip(_BROKEN), settled)
            self._instead = tuple(sorted(others, key=len, reverse=True))

    def __call__(self, token_id: int) -> str:
        """The text that the next token completes, often empty."""
        ids = self._ids
        ids.append(token_id)
        text = self._decode(ids)
        if text.endswith(_BROKEN):
            return self._let_out(text) if self._is_full() else ""
        new = self._new(text)
        if new:
            self._settle()
        elif self._is_full():  # special tokens are no context: forget one of them
            del ids[self._num_settled]
        return new

    def fork(self) -> "TextStream":
        """Another that has made the same text."""
        other = copy.copy(self)
        other._ids = [*self._ids]
        return other

    def rest(self) -> str:
        """What still waits, though it is no whole character: the text ends here."""
        new = self._new(self._decode(self._ids))
        self._settle()
        return new

    def _is_full(self) -> bool:
        return len(self._ids) - self._num_settled > _MAX_HELD

    def _new(self, text: str) -> str:
        """What the text of all tokens at hand has more than before."""
        if text.startswith(self._before):
            return text[len(self._before) :]
        for before in self._instead:
            if text.startswith(before):
                return text[len(before) :]
        # A byte that is no character can make a decoder take back those before it.
        return self._decode(self._ids[self._num_settled :])

    def _settle(self) -> None:
        """Nothing waits any more: what did is the context of the next token."""
        ids = self._ids
        del ids[: self._num_settled]
        self._num_settled = len(ids)
        self._before, self._instead = self._decode(ids), ()

    def _let_out(self, text: str) -> str:
        """New text but for its end, which may still become a character."""
        new = self._new(text)
        self._ids = self._ids[-_CONTEXT:]
        self._num_settled = len(self._ids) - _OPEN
        self._before, self._instead = self._decode(self._ids), ()
        if not self._before.endswith(_BROKEN):
            return new  # it was followed by special tokens only
        self._before = self._before[:-1]
        return new[:-1]


class TightStream(TextStream):
    """A `TextStream` that writes no space between special tokens.

    Args:
        decode: text of token ids, special tokens included.
        prompt: the token ids that come before.
        special: the texts of special tokens, by id.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        prompt: Sequence[int],
        special: Mapping[int, str],
    ) -> None:
        super().__init__(decode, prompt)
        self._special = special
        self._after_special = False

    def __call__(self, token_id: int) -> str:
        """See `TextStream`."""
        text, special = super().__call__(token_id), self._special.get(token_id)
        if special is not None and self._after_special:
            text = special
        self._after_special = special is not None
        return text


def _end_of(
    prompt: Sequence[int], decode: Callable[[list[int]], str]
) -> tuple[list[int], int, str]:
    """Last tokens of a prompt, how many of them make whole characters, and these.

    They begin with a whole one too: some decoders make nothing of all bytes in a row
    if the first are half a character. Most prompts are whole, and decoded once.
    """
    for num_open, more in itertools.product(range(_OPEN + 1), repeat=2):
        ids = list(prompt[-(_CONTEXT + num_open + more) :])
        whole = max(len(ids) - num_open, 0)
        text = decode(ids[:whole])
        if not text.startswith(_BROKEN) and not text.endswith(_BROKEN):
            return ids, whole, text
    ids = list(prompt[-_CONTEXT:])
    return ids, len(ids), decode(ids)
