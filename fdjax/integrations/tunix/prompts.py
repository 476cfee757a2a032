"""Texts as token ids, in the way of Tunix's own rollout."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fdjax.errors import ConfigError, RequestError


class Prompts:
    """Makes token ids of texts, and takes padding away.

    Args:
        tokenizer: Tunix's adapter of one.
        max_length: of a prompt and its output, in tokens.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length

    def tokens(self, text: Any) -> list[int]:
        """A text's, behind one token that begins a sequence, where there is such."""
        if not isinstance(text, str):
            raise RequestError(f"a prompt is a {type(text).__name__}; give texts")
        begin = self._tokenizer.bos_id()
        ids = ([begin] if begin else []) + [*self._tokenizer.encode(text)]
        return [int(each) for each in self._tokenizer.dedup_bos_ids(ids)]

    def seen(self, tokens: Sequence[int] | np.ndarray) -> list[int]:
        """Those that are not padding: Tunix's models see no others, and count none."""
        pad = self._tokenizer.pad_id()
        return [int(each) for each in tokens if each != pad]

    def check(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Refuses what has no room.

        Args:
            prompts: token ids.
            new_tokens: that may follow each.

        Raises:
            ConfigError: one has not.
            RequestError: one has no tokens.
        """
        for index, prompt in enumerate(prompts):
            length = len(prompt) + new_tokens
            if length > self._max_length:
                raise ConfigError(
                    f"prompt {index} has {len(prompt)} tokens and up to {new_tokens} "
                    f"follow, {length} in all, but kv_cache_size is "
                    f"{self._max_length} in the RolloutConfig that the rollout was "
                    "made with (that of Mode.TRAIN); raise it there"
                )
            if not prompt:
                raise RequestError(f"prompt {index} has no tokens besides padding")

    def padded(self, prompts: Sequence[Sequence[int]], length: int) -> np.ndarray:
        """`[B, P]`, padded on the left; `P` is `length`, or a power of 2 that fits."""
        longest = max(map(len, prompts), default=0)
        if longest > length:
            length = 1 << (longest - 1).bit_length()
        rows = np.full((len(prompts), length), self._tokenizer.pad_id(), np.int32)
        for row, prompt in zip(rows, prompts, strict=True):
            row[length - len(prompt) :] = prompt
        return rows
