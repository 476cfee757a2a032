"""Log-probabilities in the two shapes that OpenAI has for them, and in vLLM's."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from fdjax.engine.request import Logprob
from fdjax.serve.tokenizer import Tokenizer

# JSON has no infinity; vLLM says the same.
_LOWEST = -9999.0


class TokenTexts:
    """The texts of single tokens, remembered.

    Args:
        tokenizer: without one, tokens are called by their ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.of = functools.lru_cache(maxsize=2**16)(self._of)

    def _of(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.piece(token_id)

    def width(self, token_id: int, *, is_shown: bool) -> int:
        """Characters that a token adds to a text.

        Args:
            token_id: the token.
            is_shown: special tokens are; else they add none.
        """
        if is_shown or self._tokenizer is None:
            return len(self.of(token_id))
        # Two, because some tokenizers strip a text's start.
        is_special = not self._tokenizer.decode([token_id, token_id])
        return 0 if is_special else len(self.of(token_id))


def completion_logprobs(
    texts: TokenTexts,
    token_ids: Sequence[int],
    logprobs: Sequence[Logprob | None],
    *,
    num_top: int,
    offsets: Sequence[int],
) -> dict[str, list[Any]]:
    """The shape of `/v1/completions`.

    Args:
        texts: of tokens.
        token_ids: the tokens.
        logprobs: one each; `None` for a prompt's first token.
        num_top: how many of the most likely tokens are told; there may be more.
        offsets: characters of the text before each.
    """
    return {
        "tokens": [texts.of(token) for token in token_ids],
        "token_logprobs": [one and _finite(one.logprob) for one in logprobs],
        "top_logprobs": [
            one and _top(texts, token, one, num_top)
            for token, one in zip(token_ids, logprobs, strict=True)
        ],
        "text_offset": list(offsets),
    }


def _top(texts: TokenTexts, token: int, one: Logprob, num_top: int) -> dict[str, float]:
    """The chosen token's too: there may be one more than was asked for."""
    values = {token: one.logprob, **dict(itertools.islice(one.top.items(), num_top))}
    return {texts.of(token): _finite(value) for token, value in values.items()}


def chat_logprobs(
    texts: TokenTexts, token_ids: Sequence[int], logprobs: Sequence[Logprob]
) -> dict[str, list[Any]]:
    """The shape of `/v1/chat/completions`; arguments as above."""
    return {
        "content": [
            _entry(texts.of(token), one.logprob)
            | {"top_logprobs": [_entry(texts.of(t), v) for t, v in one.top.items()]}
            for token, one in zip(token_ids, logprobs, strict=True)
        ]
    }


def prompt_entry(
    texts: TokenTexts, token: int, one: Logprob, num_top: int
) -> dict[int, dict[str, Any]]:
    """The shape of vLLM's `prompt_logprobs`: by token, the one in the prompt first.

    Args:
        texts: of tokens.
        token: that stands in the prompt.
        one: its log-probability.
        num_top: how many of the most likely tokens are told; there may be more.
    """
    ranks = {other: rank for rank, other in enumerate(one.top, start=1)}
    told = [token, *itertools.islice(one.top, num_top)]
    values = {**one.top, token: one.logprob}
    return {
        other: {
            "logprob": _finite(values[other]),
            "rank": ranks.get(other),
            "decoded_token": texts.of(other),
        }
        for other in told
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    # A token that is part of a character decodes to a stand-in: its bytes are unknown.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": known}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
