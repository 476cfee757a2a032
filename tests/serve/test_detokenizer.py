"""Increments made chunks: characters, stop strings, what belongs to the last token."""

import pytest

from fdjax.engine.request import Increment, Request
from fdjax.errors import RequestError
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.models import SHIPPED, resolve
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.outputs import Chunk
from fdjax.serve.tokenizer import FastTokenizer
from tests.support.fake_engine import logprobs_of

TOKENIZER = FastTokenizer(resolve(SHIPPED) / "tokenizer.json")
PROMPT = TOKENIZER.encode("Once")
TEXT = " upon a time there was a fox"
TOKENS = TOKENIZER.encode_plain(TEXT)


def chunks(params: SamplingParams, *, per_step: int = 1) -> list[Chunk]:
    """What becomes of `TOKENS`, so many in an increment."""
    detokenizer = Detokenizer(TOKENIZER, Request(3, tuple(PROMPT), params, 99))
    made: list[Chunk] = []
    for start in range(0, len(TOKENS), per_step):
        token_ids = TOKENS[start : start + per_step]
        last = start + per_step >= len(TOKENS)
        increment = Increment(
            3,
            token_ids,
            logprobs_of(token_ids, params.logprobs),
            FinishReason.LENGTH if last else None,
        )
        made.append(detokenizer.chunk(increment))
        if detokenizer.ended:
            break
    return made


def text_of(made: list[Chunk]) -> str:
    return "".join(chunk.text or "" for chunk in made)


@pytest.mark.parametrize("per_step", [1, 3, 99])
def test_text_without_stop_strings(per_step: int):
    made = chunks(SamplingParams(), per_step=per_step)
    assert text_of(made) == TEXT
    assert [chunk.finish_reason for chunk in made[:-1]] == [None] * (len(made) - 1)
    assert made[-1].finish_reason == "length"
    assert {chunk.index for chunk in made} == {3}
    assert made[0].logprobs is None


@pytest.mark.parametrize("per_step", [1, 3, 99])
@pytest.mark.parametrize(
    ("included", "end"), [(False, " upon a t"), (True, " upon a time the")]
)
def test_a_stop_string_over_several_tokens(per_step: int, included: bool, end: str):
    params = SamplingParams(
        stop="ime the", include_stop_str_in_output=included, logprobs=0
    )
    made = chunks(params, per_step=per_step)
    assert text_of(made) == end
    assert made[-1].finish_reason == "stop"
    token_ids = [token for chunk in made for token in chunk.token_ids]
    assert token_ids == TOKENS[: len(token_ids)]
    assert "ime the" in TOKENIZER.decode(token_ids)
    assert "ime the" not in TOKENIZER.decode(token_ids[:-1])
    assert sum(len(chunk.logprobs or ()) for chunk in made) == len(token_ids)


def test_what_was_held_back_comes_at_the_end():
    made = chunks(SamplingParams(stop=["fox and hound", TEXT + "es"]))
    assert all(chunk.text == "" for chunk in made[:-1])
    assert made[-1].text == TEXT


def cut_snowman(params: SamplingParams, prompt: list[int]) -> list[Chunk]:
    """A prompt's chunks of a word, and of a character without its last byte."""
    tokens = TOKENIZER.encode_plain(" a☃")[:-1]
    detokenizer = Detokenizer(TOKENIZER, Request(3, tuple(prompt), params, 99))
    reasons = [*[None] * (len(tokens) - 1), FinishReason.LENGTH]
    increments = [
        Increment(3, [token], None, reason)
        for token, reason in zip(tokens, reasons, strict=True)
    ]
    return [detokenizer.chunk(increment) for increment in increments]


def test_a_character_cut_by_the_end_is_shown_as_cut():
    made = cut_snowman(SamplingParams(), PROMPT)
    assert [chunk.text for chunk in made] == [" a", "", "\ufffd"]
    assert made[-1].finish_reason == "length"
    (*_, last) = cut_snowman(SamplingParams(stop="\ufffd"), PROMPT)
    assert (last.text, last.finish_reason) == ("", "stop")


def test_a_stop_string_in_the_prompt_ends_nothing():
    """Nor where the prompt's last character is completed by the output."""
    *prompt, last = TOKENIZER.encode("Once upon a time 中")
    params = SamplingParams(stop="time")
    detokenizer = Detokenizer(TOKENIZER, Request(3, tuple(prompt), params, 99))
    chunk = detokenizer.chunk(Increment(3, [last], None, None))
    assert (chunk.text, chunk.finish_reason) == ("中", None)


def test_min_tokens_come_before_any_stop_string():
    early = SamplingParams(stop=" a", max_tokens=99)
    late = SamplingParams(stop=" a", max_tokens=99, min_tokens=4)
    assert text_of(chunks(early)) == " upon"
    assert text_of(chunks(late)) == " upon a time there was"


def test_without_a_tokenizer_there_is_no_text():
    request = Request(0, (1,), SamplingParams(), 9)
    chunk = Detokenizer(None, request).chunk(Increment(0, [5, 6], None, None))
    assert (chunk.text, chunk.token_ids) == (None, [5, 6])
    with pytest.raises(RequestError, match=r"stop .* no tokenizer; use stop_token_ids"):
        Detokenizer(None, Request(0, (1,), SamplingParams(stop="a"), 9))


@pytest.mark.parametrize("included", [False, True])
def test_a_token_that_ends_the_output_is_told_and_is_no_text(included: bool):
    params = SamplingParams(
        stop_token_ids=TOKENS[-1:], include_stop_str_in_output=included
    )
    detokenizer = Detokenizer(
        TOKENIZER, Request(0, tuple(PROMPT), params, 99), request_id="a"
    )
    chunk = detokenizer.chunk(Increment(0, TOKENS, None, FinishReason.STOP))
    end = TOKENIZER.decode(TOKENS[-1:])
    assert chunk.text == (TEXT if included else TEXT.removesuffix(end))
    assert chunk.token_ids == TOKENS
    assert chunk.stop_reason == TOKENS[-1]
    assert chunk.request_id == "a"


def test_the_stop_string_is_told():
    made = chunks(SamplingParams(stop=["time", "me"]), per_step=99)
    assert made[-1].stop_reason == "time"
    assert chunks(SamplingParams())[-1].stop_reason is None


@pytest.mark.parametrize("skipped", [False, True])
def test_special_tokens_are_text_if_asked_for(skipped: bool):
    params = SamplingParams(skip_special_tokens=skipped)
    special = PROMPT[0]
    detokenizer = Detokenizer(TOKENIZER, Request(0, tuple(PROMPT), params, 99))
    tokens = [*TOKENS[:2], special, TOKENS[2], special]
    chunk = detokenizer.chunk(Increment(0, tokens, None, FinishReason.STOP))
    first, then = TOKENIZER.decode(TOKENS[:2]), TOKENIZER.decode(TOKENS[2:3])
    name = "" if skipped else TOKENIZER.piece(special)
    assert chunk.text == first + name + then, "the last one is the end, and no text"
