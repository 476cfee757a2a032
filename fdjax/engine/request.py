"""Requests and what comes back of them, in token ids."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fdjax.engine.matcher import Grammar, Matcher
from fdjax.errors import RequestError
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.memory.kv import KVLayout


@dataclass(frozen=True)
class Logprob:
    """Log-probabilities of one position.

    Attributes:
        logprob: of the chosen token.
        top: token id to log-probability of the most likely tokens, in that order.
    """

    logprob: float
    top: dict[int, float]


def as_logprobs(
    chosen: np.ndarray, ids: np.ndarray, values: np.ndarray, *, num_top: int
) -> list[Logprob]:
    """Log-probabilities as users read them.

    Args:
        chosen: of the chosen tokens, `[T]`.
        ids: the most likely tokens of each position, `[T, N]`.
        values: their log-probabilities.
        num_top: how many of them are wanted.
    """
    tops = zip(ids[:, :num_top].tolist(), values[:, :num_top].tolist(), strict=True)
    return [
        Logprob(logprob, dict(zip(*top, strict=True)))
        for logprob, top in zip(chosen.tolist(), tops, strict=True)
    ]


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    Attributes:
        index: place in the order of the caller.
        prompt: token ids.
        params: how to continue it.
        max_tokens: longest output, once the model's own limit is counted in.
        grammar: what the output may be; `None` lets it be anything.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    grammar: Grammar | None = None

    @property
    def limited_params(self) -> SamplingParams:
        """`params`, with the limits on its length that really hold."""
        return dataclasses.replace(
            self.params,
            max_tokens=self.max_tokens,
            min_tokens=min(self.params.min_tokens, self.max_tokens),
        )

    def sampled(self, params: SamplingParams) -> "Request":
        """Another sample of it, whose parameters differ in the seed alone."""
        return dataclasses.replace(self, params=params)

    def matcher(self) -> Matcher | None:
        """Of one output, at its beginning; `None` where it may be anything."""
        return None if self.grammar is None else self.grammar.matcher()

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose keys and values are kept; those of the last are never needed."""
        return len(self.prompt) + self.max_tokens - 1


@dataclass(slots=True)  # one a row and step; a frozen one takes three times as long
class Increment:
    """New tokens of one request; none where only now the end is known.

    Attributes:
        index: the request's.
        token_ids: tokens since the last increment.
        logprobs: one for each token, where the request asked for them.
        finish_reason: set in the last increment.
        prompt_logprobs: of the prompt's tokens, `None` for the first; with the first
            increment, where the request asked for them.
    """

    index: int
    token_ids: list[int]
    logprobs: list[Logprob] | None
    finish_reason: FinishReason | None
    prompt_logprobs: list[Logprob | None] | None = None


def make_request(
    index: int,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    grammar: Grammar | None = None,
) -> Request:
    """Checks a prompt against the model's limits.

    Raises:
        RequestError: the prompt is empty, too long, or names tokens that do not exist;
            or `params` want a form, and there is no grammar of it.
    """
    where = f"prompt {index}"
    if not prompt:
        raise RequestError(f"{where} is empty; give at least one token")
    if len(prompt) >= max_model_len:
        raise RequestError(
            f"{where} has {len(prompt)} tokens, but max_model_len is {max_model_len} "
            "and must leave room for one more; shorten it or raise max_model_len"
        )
    outside = [token for token in prompt if not 0 <= token < vocab_size]
    if outside:
        raise RequestError(
            f"{where} names token {outside[0]}, but the vocabulary has {vocab_size} "
            f"tokens; use ids from 0 to {vocab_size - 1}"
        )
    params.check_vocabulary(vocab_size)
    if params.structured_outputs is not None and grammar is None:
        raise RequestError(
            "structured_outputs needs a grammar in the model's tokens, and there is "
            "none; go through an LLM, or an AsyncLLM that has grammars"
        )
    room = max_model_len - len(prompt)
    wanted = room if params.max_tokens is None else params.max_tokens
    return Request(index, tuple(prompt), params, min(wanted, room), grammar)


def check_pages(request: Request, layout: KVLayout) -> None:
    """Refuses what the whole KV array could not hold.

    Raises:
        RequestError: it needs more pages than there are.
    """
    needed = layout.pages_for(request.num_kv_tokens)
    if needed > layout.num_pages:
        raise RequestError(
            f"prompt {request.index} and its output need {needed} pages of "
            f"{layout.page_size} tokens, but there are {layout.num_pages}; shorten the "
            "prompt, or lower max_tokens"
        )
