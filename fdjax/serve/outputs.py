"""What `LLM` returns, in the words of vLLM."""

from dataclasses import dataclass, field
from typing import Literal

from fdjax.engine.request import Logprob

type FinishText = Literal["stop", "length"]


@dataclass
class Output:
    """The continuation of one prompt.

    Attributes:
        index: place of the prompt in the call.
        prompt: the prompt's text, where it was given as text.
        prompt_token_ids: the prompt's tokens.
        token_ids: the tokens made, the one that ended them included.
        text: their text, special tokens left out; `None` without a tokenizer.
        finish_reason: "stop" or "length"; `None` while tokens are still coming.
        logprobs: one entry a token, where the request asked for them.
    """

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list[int])
    text: str | None = None
    finish_reason: FinishText | None = None
    logprobs: list[Logprob] | None = None


@dataclass(frozen=True)
class Chunk:
    """New tokens of one prompt, as they stream.

    Attributes:
        index: place of the prompt in the call.
        token_ids: tokens since the last chunk.
        text: the text they complete; characters are never split. `None` without a
            tokenizer.
        finish_reason: set in the last chunk of the prompt.
        logprobs: one entry a token, where the request asked for them.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishText | None
    logprobs: list[Logprob] | None = None
