"""A prompt as users give it, made token ids."""

import operator
from collections.abc import Sequence

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.serve.tokenizer import Tokenizer

type Prompt = str | Sequence[int]


def token_ids_of(prompt: object, index: int, tokenizer: Tokenizer | None) -> list[int]:
    """The token ids of a prompt, as Python integers: NumPy's would not survive JSON.

    Args:
        prompt: a text, or what gives token ids.
        index: place of the prompt in the call.
        tokenizer: for texts.

    Raises:
        RequestError: it is neither; or a text, and there is no tokenizer.
    """
    if not isinstance(prompt, str):
        return _integers(prompt, index)
    if tokenizer is None:
        raise RequestError(
            f"prompt {index} is text, but the model has no tokenizer; give token ids"
        )
    return tokenizer.encode(prompt)


def _integers(prompt: object, index: int) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]  # pyright: ignore[reportGeneralTypeIssues]  (what cannot be iterated raises TypeError)
    except TypeError:
        raise RequestError(
            f"prompt {index} is {shown(prompt)}; give a text or a sequence of token ids"
        ) from None
