"""`LLM`: prompts of every sort in, checked outputs out."""

import dataclasses
import math
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fdjax import (
    LLM,
    Chunk,
    RequestError,
    SamplingParams,
)
from fdjax.models import SHIPPED, resolve

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
STORY = "Once upon a time"
PROMPTS = (STORY, "The king said", "In the wood there was an old", "A")


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    """What each prompt gives by itself."""
    return [llm.generate(prompt, GREEDY)[0].token_ids for prompt in PROMPTS]


def ids(llm: LLM, text: str) -> list[int]:
    assert llm.tokenizer is not None
    return llm.tokenizer.encode(text)


def test_a_text_is_continued(llm: LLM, alone: list[list[int]]):
    (output,) = llm.generate(STORY, GREEDY)
    assert output.prompt == STORY
    assert output.prompt_token_ids == tuple(ids(llm, STORY))
    assert output.token_ids == alone[0]
    assert output.finish_reason == "length"
    assert output.logprobs is None
    assert output.text is not None
    assert output.text.startswith(" there ")


@pytest.mark.parametrize("as_given", [list, tuple, np.array])
def test_token_ids_are_continued(llm: LLM, alone: list[list[int]], as_given: Any):
    (output,) = llm.generate(as_given(ids(llm, STORY)), GREEDY)
    assert output.prompt is None
    assert output.token_ids == alone[0]
    assert {type(token) for token in output.prompt_token_ids} == {int}


def test_texts_and_token_ids_mixed(llm: LLM, alone: list[list[int]]):
    mixed = [PROMPTS[0], ids(llm, PROMPTS[1]), PROMPTS[2], ids(llm, PROMPTS[3])]
    outputs = llm.generate(mixed, GREEDY)
    assert [output.token_ids for output in outputs] == alone
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert [output.prompt for output in outputs] == [PROMPTS[0], None, PROMPTS[2], None]


def test_more_prompts_than_rows_take_turns(llm: LLM, alone: list[list[int]]):
    outputs = llm.generate([*PROMPTS, *PROMPTS, STORY], GREEDY)
    assert [o.token_ids for o in outputs] == [*alone, *alone, alone[0]]
    assert [output.index for output in outputs] == list(range(9))


def test_no_prompts_give_no_outputs(llm: LLM):
    assert llm.generate([]) == []


def test_streamed_text_is_the_generated_text(llm: LLM):
    outputs = llm.generate(PROMPTS, GREEDY)
    chunks = list(llm.stream(PROMPTS, GREEDY))
    for output in outputs:
        own = [chunk for chunk in chunks if chunk.index == output.index]
        assert "".join(chunk.text or "" for chunk in own) == output.text
        assert [t for chunk in own for t in chunk.token_ids] == output.token_ids
        assert [chunk.finish_reason for chunk in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == output.finish_reason
        assert len(own) > 1


def test_characters_are_never_split(llm: LLM):
    # The bytes of two snowmen, forced one by one; each is three tokens.
    assert llm.tokenizer is not None
    snowman = llm.tokenizer.encode_plain("☃")
    assert len(snowman) == 3
    texts = _stream_text(llm, [*snowman, *snowman])
    assert texts == ["", "", "☃", "", "", "☃"]


def _stream_text(llm: LLM, token_ids: Sequence[int]) -> list[str]:
    assert llm.tokenizer is not None
    to_text = llm.tokenizer.stream(ids(llm, STORY))
    return [to_text(token) for token in token_ids]


def test_an_end_token_is_a_stop(llm: LLM, alone: list[list[int]]):
    params = dataclasses.replace(GREEDY, stop_token_ids=[alone[0][3]])
    (output,) = llm.generate(STORY, params)
    assert output.token_ids == alone[0][:4]
    assert output.finish_reason == "stop"


def test_every_prompt_may_have_its_own_parameters(llm: LLM, alone: list[list[int]]):
    many = [dataclasses.replace(GREEDY, max_tokens=n) for n in (1, 5, 9, 12)]
    outputs = llm.generate(PROMPTS, many)
    assert [o.token_ids for o in outputs] == [
        tokens[:n] for tokens, n in zip(alone, (1, 5, 9, 12), strict=True)
    ]


def test_logprobs_where_asked_for(llm: LLM, alone: list[list[int]]):
    asked = dataclasses.replace(GREEDY, logprobs=2)
    with_logprobs, without = llm.generate(PROMPTS[:2], [asked, GREEDY])
    assert without.logprobs is None
    assert with_logprobs.token_ids == alone[0]
    assert with_logprobs.logprobs is not None
    assert len(with_logprobs.logprobs) == len(alone[0])
    for token, entry in zip(alone[0], with_logprobs.logprobs, strict=True):
        assert next(iter(entry.top)) == token, "greedy takes the most likely token"
        assert entry.top[token] == pytest.approx(entry.logprob, abs=1e-6)
        assert len(entry.top) == 2
        assert sum(map(math.exp, entry.top.values())) <= 1.0 + 1e-6


def test_streamed_logprobs_are_the_generated_ones(llm: LLM):
    asked = [dataclasses.replace(GREEDY, logprobs=2), GREEDY]
    chunks: list[Chunk] = list(llm.stream(PROMPTS[:2], asked))
    own = [chunk for chunk in chunks if chunk.index == 0]
    assert all(len(c.logprobs or []) == len(c.token_ids) for c in own)
    assert all(chunk.logprobs is None for chunk in chunks if chunk.index == 1)


def test_seeded_draws_repeat_and_unseeded_ones_differ(llm: LLM):
    drawn = SamplingParams(max_tokens=40)  # no two texts of that length are alike
    seeded = dataclasses.replace(drawn, seed=5)
    first, second, third, fourth = llm.generate([STORY] * 4, [seeded, drawn] * 2)
    assert first.token_ids == third.token_ids
    assert second.token_ids != fourth.token_ids
    again = llm.generate([STORY] * 4, [drawn, drawn, seeded, drawn])
    assert again[2].token_ids == first.token_ids


def test_parameters_must_match_prompts(llm: LLM):
    with pytest.raises(RequestError, match="3 prompts but 2 sampling_params"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_a_stream_given_up_gives_its_pages_back(llm: LLM, alone: list[list[int]]):
    chunks = llm.stream(PROMPTS, GREEDY)
    next(chunks)
    pool = llm.engine.scheduler.pool
    assert pool.num_free < pool.num_pages
    chunks.close()  # pyright: ignore[reportAttributeAccessIssue]  (a generator)
    assert pool.num_free == pool.num_pages
    assert llm.generate(STORY, GREEDY)[0].token_ids == alone[0]


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_ends_one_output_and_no_other(llm: LLM, included: bool):
    whole, other = llm.generate(PROMPTS[:2], GREEDY)
    assert whole.text is not None
    stop = whole.text[5:9]
    params = dataclasses.replace(
        GREEDY, stop=[stop], include_stop_str_in_output=included
    )
    stopped, same = llm.generate(PROMPTS[:2], [params, GREEDY])
    assert stopped.text == whole.text[: 9 if included else 5]
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) < len(whole.token_ids)
    assert same.token_ids == other.token_ids


def test_a_lone_configuration_is_enough_for_random_weights(tmp_path: pathlib.Path):
    config = tmp_path / "narrow.json"
    shutil.copy(resolve(SHIPPED) / "config.json", config)
    seen: list[int] = []
    llm = LLM(
        config,
        random_weights=True,
        max_model_len=32,
        max_num_seqs=1,
        hf_overrides={"num_hidden_layers": 1, "vocab_size": 64, "hidden_size": 32},
        on_progress=lambda done, *_: seen.append(done),
    )
    (output,) = llm.generate([1, 2, 3], GREEDY)
    assert all(0 <= token < 64 for token in output.token_ids)
    assert output.text is None
