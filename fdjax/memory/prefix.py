"""Keys of full pages: equal keys, equal tokens from the sequence's first on."""

import hashlib
from collections.abc import Sequence

import numpy as np


class PrefixKeys:
    """The key of each full page of a growing sequence.

    A page's keys and values depend on every token before it, so its key is the SHA-256
    of the key before and its own tokens: nobody can make another sequence that is taken
    for this one (other hashes let one tenant find out or change what another reads).

    Args:
        page_size: tokens of a page.
        salt: sequences of different salts share nothing.
    """

    def __init__(self, page_size: int, salt: bytes = b"") -> None:
        self._page_size = page_size
        self._root = hashlib.sha256(salt).digest()
        self.keys: list[bytes] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the keys of the pages that the sequence, now `tokens`, has filled."""
        size, first = self._page_size, len(self.keys)
        last = len(tokens) // size
        if last <= first:
            return
        new = np.asarray(tokens[first * size : last * size], "<u4").tobytes()
        key = self.keys[-1] if self.keys else self._root
        for begin in range(0, len(new), 4 * size):
            key = hashlib.sha256(key + new[begin : begin + 4 * size]).digest()
            self.keys.append(key)
