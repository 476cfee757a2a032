"""What answers tell of tokens where a request asks for it, in the words of vLLM."""

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel

from fdjax.engine.request import Logprob
from fdjax.serve.http.encoding import encoded
from fdjax.serve.http.logprobs import TokenTexts, prompt_entry

# Each of a prompt's tokens may have 21 log-probabilities: 2 KB of JSON.
_TOKENS_AT_ONCE = 32
_IDS_AT_ONCE = 4096


class PromptLogprob(BaseModel):
    """A token that stands in a prompt, or might have; `rank` as far as it is known."""

    logprob: float
    rank: int | None
    decoded_token: str


class OfPrompt(BaseModel):
    """A prompt as the model reads it; its first token has no log-probability."""

    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class OfOutput(BaseModel):
    """The tokens of a sample, the one that ended it among them."""

    token_ids: list[int] | None = None


async def prompt_logprobs(
    texts: TokenTexts,
    token_ids: Sequence[int],
    logprobs: Sequence[Logprob | None],
    *,
    num_top: int,
) -> list[bytes]:
    """A prompt's log-probabilities as JSON, made so that others have their turn.

    Args:
        texts: of tokens.
        token_ids: the prompt's.
        logprobs: one each; `None` for the first.
        num_top: how many of the most likely tokens are told; there may be more.

    Returns:
        The entries of a list, several in each.
    """
    entries: list[bytes] = []
    for begin in range(0, len(token_ids), _TOKENS_AT_ONCE):
        end = begin + _TOKENS_AT_ONCE
        pairs = zip(token_ids[begin:end], logprobs[begin:end], strict=True)
        made = [
            one and prompt_entry(texts, token, one, num_top) for token, one in pairs
        ]
        entries.append(encoded(made)[1:-1])
        await asyncio.sleep(0)
    return entries


async def prompt_ids(token_ids: Sequence[int]) -> list[bytes]:
    """A prompt's token ids as JSON, likewise."""
    entries: list[bytes] = []
    for begin in range(0, len(token_ids), _IDS_AT_ONCE):
        entries.append(encoded(token_ids[begin : begin + _IDS_AT_ONCE])[1:-1])
        await asyncio.sleep(0)
    return entries
