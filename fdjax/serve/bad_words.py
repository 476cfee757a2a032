"""Words that an output must not contain, made sequences of token ids."""

import dataclasses

from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.checks import shown
from fdjax.generate.fields import MAX_BAD_TOKENS
from fdjax.generate.params import SamplingParams
from fdjax.serve.tokenizer import Tokenizer, tokenised


def in_tokens[P: (SamplingParams, BeamSearchParams)](
    params: P, tokenizer: Tokenizer | None
) -> P:
    """The same request with its `bad_words` as an engine takes them.

    A word has two sequences of tokens: at the beginning of a text, and after a space.

    Args:
        params: as given.
        tokenizer: of the model; without one, texts stay, and the engine refuses them.

    Raises:
        RequestError: a word has too many tokens, or none.
    """
    texts = [word for word in params.bad_words if isinstance(word, str)]
    if tokenizer is None or not texts:
        return params
    sequences = {word: None for word in params.bad_words if not isinstance(word, str)}
    for text in texts:
        for token_ids in _sequences(text, tokenizer):
            sequences[token_ids] = None
    return dataclasses.replace(params, bad_words=tuple(sequences))


def _sequences(text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    bare = text.lstrip() or text
    found = [
        tuple(tokenised(tokenizer.encode_plain, words, "a text of bad_words"))
        for words in (bare, f" {bare}")
    ]
    longest = max(map(len, found))
    if longest > MAX_BAD_TOKENS or not all(found):
        raise RequestError(
            f"bad_words has {shown(text)}, which is {longest} tokens; use texts of 1 "
            f"to {MAX_BAD_TOKENS} tokens"
        )
    return found
