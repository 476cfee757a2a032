"""A prompt as users give it, made token ids."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict, cast

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.serve.tokenizer import Tokenizer, tokenised

type PlainPrompt = str | Sequence[int]
type Prompt = PlainPrompt | TextPrompt | TokensPrompt
type CutPrompt = Prompt | LastTokens


class TextPrompt(TypedDict):
    """A text, as vLLM's users write it."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, as vLLM's users write them; with their text, if it is at hand."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]


@dataclass(frozen=True)
class LastTokens:
    """A prompt that is cut at its beginning, where it is too long.

    Attributes:
        prompt: all of it.
        count: tokens that are left at most, one or more.
    """

    prompt: Prompt
    count: int


def plain(prompt: Prompt, index: int) -> PlainPrompt:
    """A text or token ids, taken out of the mapping that they may stand in.

    Args:
        prompt: as given.
        index: place of the prompt in the call.

    Raises:
        RequestError: it is another mapping, or one with something else in it.
    """
    if not isinstance(prompt, Mapping):
        return prompt
    fields = {**cast("Mapping[object, object]", prompt)}
    match fields.get("prompt"), fields.get("prompt_token_ids"), len(fields):
        case str(text), None, 1:
            return text
        case (None, ids, 1) | (str(), ids, 2) if _may_be_ids(ids):
            return cast("Sequence[int]", ids)
        case _:
            raise RequestError(
                f"prompt {index} is a mapping with {shown([*fields])}; give "
                "{'prompt': a text} or {'prompt_token_ids': token ids}, and nothing "
                "else"
            )


def text_of(prompt: Prompt) -> str | None:
    """The text of a prompt that `plain` takes, where it was given."""
    if isinstance(prompt, Mapping):
        return prompt.get("prompt")
    return prompt if isinstance(prompt, str) else None


def token_ids_of(prompt: object, index: int, tokenizer: Tokenizer | None) -> list[int]:
    """The token ids of a prompt, as Python integers: NumPy's would not survive JSON.

    Args:
        prompt: a text, or what gives token ids.
        index: place of the prompt in the call.
        tokenizer: for texts.

    Raises:
        RequestError: it is neither; or a text, and there is no tokenizer, or one that
            fails on it.
    """
    if not isinstance(prompt, str):
        return _integers(prompt, index)
    if tokenizer is None:
        raise RequestError(
            f"prompt {index} is text, but the model has no tokenizer; give token ids"
        )
    return tokenised(tokenizer.encode, prompt, f"prompt {index}")


def _may_be_ids(value: object) -> bool:
    return value is not None and not isinstance(value, str | Mapping)


def _integers(prompt: object, index: int) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]  # pyright: ignore[reportGeneralTypeIssues]  (what cannot be iterated raises TypeError)
    except TypeError:
        raise RequestError(
            f"prompt {index} is {shown(prompt)}; give a text or a sequence of token ids"
        ) from None
