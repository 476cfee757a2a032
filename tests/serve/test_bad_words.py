"""Words that an output must not contain: as tokens, and in what comes out."""

import dataclasses

import pytest

from fdjax import LLM, RequestError, SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.bad_words import in_tokens
from fdjax.serve.tokenizer import FastTokenizer

TOKENIZER = FastTokenizer(resolve(SHIPPED) / "tokenizer.json")
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
STORY = "Once upon a time"


def test_a_word_is_avoided_at_the_beginning_and_after_a_space():
    params = in_tokens(SamplingParams(bad_words=["fox", " king", [3, 4]]), TOKENIZER)
    wanted = [TOKENIZER.encode_plain(t) for t in ("fox", " fox", "king", " king")]
    assert params.bad_words == ((3, 4), *map(tuple, wanted))


def test_nothing_to_do():
    params = SamplingParams(bad_words=[[3]])
    assert in_tokens(params, TOKENIZER) is params
    texts = SamplingParams(bad_words=["fox"])
    assert in_tokens(texts, None) is texts


def test_a_word_of_too_many_tokens_is_refused():
    with pytest.raises(RequestError, match=r"which is \d+ tokens; use texts of 1"):
        in_tokens(SamplingParams(bad_words=["abracadabra " * 3]), TOKENIZER)


def test_words_do_not_come(llm: LLM):
    (free,) = llm.generate(STORY, GREEDY)
    assert free.text is not None
    word = free.text.split()[1]
    params = dataclasses.replace(GREEDY, bad_words=[word])
    held, same = llm.generate([STORY, STORY], [params, GREEDY])
    assert held.text is not None
    assert word not in held.text.split()
    assert same.token_ids == free.token_ids
    first = next(i for i, t in enumerate(free.token_ids) if held.token_ids[i] != t)
    assert held.token_ids[:first] == free.token_ids[:first]


def test_only_allowed_tokens_come(llm: LLM):
    (free,) = llm.generate(STORY, GREEDY)
    allowed = sorted(set(free.token_ids))
    params = SamplingParams(allowed_token_ids=allowed, max_tokens=24, seed=1)
    (held,) = llm.generate(STORY, params)
    assert set(held.token_ids) <= set(allowed)
    with pytest.raises(RequestError, match="allowed_token_ids names token 100000"):
        llm.generate(STORY, SamplingParams(allowed_token_ids=[100000]))
