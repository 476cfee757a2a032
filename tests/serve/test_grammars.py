"""Structured outputs of the shipped model: what it may say, and what may be asked."""

import dataclasses
import json
import re
import sys
from typing import Any, Literal

import numpy as np
import pydantic
import pytest

from fdjax import LLM, RequestError, SamplingParams, StructuredOutputs
from fdjax.generate.stopping import FinishReason
from fdjax.serve import token_grammar
from fdjax.serve.grammars import Grammars, TokenGrammar
from fdjax.serve.outputs import Output

PROMPTS = ["Once upon a time", "The king said", "A"]
CHOICES = ["one day", "never", "once\nmore"]
WORDS = r"the( [a-z]{2,6}){2,4}\."
LARK = 'start: "the" (" " WORD){2,4} "."\nWORD: /[a-z]{2,6}/\n'
GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
DRAWN = SamplingParams(temperature=1.2, top_p=0.9, seed=4, max_tokens=60)

each_way = pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])


class Animal(pydantic.BaseModel):
    """Small: the model would tell a story in every text it may fill."""

    # The model likes white space: of what JSON allows, one space a place is left.
    model_config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"x-guidance": {"whitespace_pattern": " "}},
    )

    kind: Literal["fox", "hen"]
    legs: int = pydantic.Field(ge=0, le=9)
    name: str = pydantic.Field(min_length=1, max_length=5)


def replaced(params: SamplingParams, **form: Any) -> SamplingParams:
    return dataclasses.replace(params, structured_outputs=StructuredOutputs(**form))


def said(llm: LLM, params: SamplingParams, **form: Any) -> list[Output]:
    outputs = llm.generate(PROMPTS, replaced(params, **form))
    assert {output.finish_reason for output in outputs} == {"stop"}
    return outputs


@each_way
def test_json_is_valid_by_its_schema(llm: LLM, params: SamplingParams):
    for output in said(llm, params, json=Animal.model_json_schema()):
        assert Animal.model_validate_json(output.text or "").name


def test_json_has_no_white_space_unless_it_is_asked_for(llm: LLM):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1]}, "b": {"enum": [[1, 2]]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for output in said(llm, GREEDY, json=schema):
        assert output.text == '{"a":1,"b":[1,2]}'
    spaced = {"item_separator": ", ", "key_separator": ": "}
    for output in said(llm, GREEDY, json=schema | {"x-guidance": spaced}):
        assert output.text == '{"a": 1, "b": [1, 2]}'


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"json": {"enum": [[1, 2]]}}, r"\[1,2\]"),
        ({"regex": "(one|two)!"}, r"(one|two)!"),
        ({"grammar": LARK}, WORDS),
        ({"choice": CHOICES}, "|".join(CHOICES)),
    ],
    ids=str,
)
def test_any_text_in_front_of_a_form(llm: LLM, form: dict[str, Any], pattern: str):
    """The model's own text goes on to where the form begins: at a token, or a text."""
    for after in (" a", " who had a"):
        params = replaced(GREEDY, after=after, **form)
        (output,) = llm.generate(PROMPTS[0], params)
        assert re.search(rf".{after}[ \n]{{0,4}}({pattern})$", output.text or "")


def test_a_token_of_the_model_in_a_grammar(llm: LLM):
    """It is tried elsewhere, where there is no such token."""
    assert llm.tokenizer is not None
    (token,) = llm.tokenizer.encode_plain(" the")
    params = replaced(GREEDY, grammar=f'start: <[{token}]> "!"')
    assert said(llm, params, grammar=f'start: <[{token}]> "!"')[0].token_ids[0] == token


@each_way
def test_a_regex_matches_the_whole(llm: LLM, params: SamplingParams):
    for output in said(llm, params, regex=WORDS):
        assert re.fullmatch(WORDS, output.text or "")


@each_way
def test_a_grammar_accepts_it(llm: LLM, params: SamplingParams):
    for output in said(llm, params, grammar=LARK):
        assert re.fullmatch(WORDS, output.text or "")


@each_way
def test_a_choice_is_one_of_the_choices(llm: LLM, params: SamplingParams):
    for output in said(llm, params, choice=CHOICES):
        assert output.text in CHOICES


def test_any_object(llm: LLM):
    (output,) = llm.generate(PROMPTS[0], replaced(DRAWN, json_object=True))
    assert (output.text or "").startswith("{")
    if output.finish_reason == "stop":
        assert isinstance(json.loads(output.text or ""), dict)


def test_in_a_crowd_all_get_what_they_get_alone(llm: LLM):
    forms = [
        replaced(GREEDY, regex=WORDS),
        replaced(DRAWN, json=Animal.model_json_schema()),
        GREEDY,
        replaced(DRAWN, choice=CHOICES),
        DRAWN,
        GREEDY,
    ]
    prompts = [PROMPTS[0]] * len(forms)
    alone = [llm.generate(PROMPTS[0], form)[0].token_ids for form in forms]
    assert [output.token_ids for output in llm.generate(prompts, forms)] == alone


def test_with_everything_else(llm: LLM):
    """Penalties, a bias that pulls away, min_tokens and log-probabilities."""
    params = dataclasses.replace(
        DRAWN,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        logit_bias=dict.fromkeys(range(100), 20.0),
        min_tokens=30,
        logprobs=2,
    )
    for output in said(llm, params, regex=WORDS):
        assert re.fullmatch(WORDS, output.text or "")
        logprobs = output.logprobs or []
        assert len(logprobs) == len(output.token_ids)
        assert all(one.logprob > -np.inf for one in logprobs)


def test_the_length_cuts_it(llm: LLM):
    short = dataclasses.replace(replaced(GREEDY, regex="a{30,}"), max_tokens=2)
    (output,) = llm.generate(PROMPTS[0], short)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 2)


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(" * 2000 + "a" + ")" * 2000}, "invalid regex"),
        ({"regex": "()"}, "no token of the model may begin it"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "root ::= foo"}, "cannot be read as GBNF: Rule 'foo' not found"),
        ({"grammar": "root ::= " + "(" * 9000}, "cannot be read as GBNF"),
        ({"grammar": 'start: "::=" foo'}, "unknown name"),
        ({"json": {"type": "nonsense"}}, "Invalid type"),
        ({"json": {"$ref": "https://example.com/a"}}, "not present in a registry"),
        ({"json": {"not": {"type": "string"}}}, "Unimplemented keys"),
        ({"json": {"type": "string", "pattern": "(a"}}, "unclosed group"),
        ({"json": {"type": "integer", "multipleOf": 999983}}, "more than 0.6 seconds"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_compiled(llm: LLM, form: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=rf"^structured_outputs: (?s:.*){message}"):
        llm.generate(PROMPTS[0], replaced(GREEDY, **form))
    assert llm.generate(PROMPTS[0], replaced(GREEDY, choice=["a"]))[0].text == "a"


def test_without_a_tokenizer():
    lone = Grammars(None, vocab_size=8, eos_token_ids=[1])
    with pytest.raises(
        RequestError, match="structured_outputs: the model has no token"
    ):
        lone.compile(replaced(GREEDY, regex="a"))
    assert lone.compile(GREEDY) is None


def test_what_the_first_would_wait_for_is_done_ahead(llm: LLM):
    grammars = Grammars(llm.tokenizer, vocab_size=96, eos_token_ids=[0])
    assert vars(grammars).keys().isdisjoint({"_tokens"})
    grammars.prepare()
    grammars._compiling.quick.close(wait=True)
    assert grammars._trial._forks._process is not None
    assert "_tokens" in vars(grammars)


def test_without_the_package(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"llguidance; .* --extra serve"):
        llm.grammars.compile(replaced(GREEDY, regex="a"))


# --- Where a text may end -------------------------------------------------------------


def grammar_of(llm: LLM, params: SamplingParams) -> TokenGrammar:
    grammar = llm.grammars.compile(params)
    assert grammar is not None
    return grammar


def allowed(llm: LLM, params: SamplingParams, text: str) -> set[int]:
    """Tokens that may follow a text."""
    assert llm.tokenizer is not None
    matcher = grammar_of(llm, params).matcher()
    for token in llm.tokenizer.encode_plain(text):
        matcher.advance(token)
    assert matcher.finish_reason == FinishReason.RUNNING
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_ends_come_where_a_text_may_end(llm: LLM):
    (eos,) = llm.config.eos_token_ids
    params = replaced(GREEDY, regex="(ab)*c?")
    assert eos in allowed(llm, params, "ab")
    assert eos not in allowed(llm, params, "a")
    assert eos not in allowed(llm, dataclasses.replace(params, ignore_eos=True), "ab")
    other = 0 if eos else 2  # special tokens of the shipped model
    assert other not in allowed(llm, params, "ab")
    stops = dataclasses.replace(params, stop_token_ids=[other, 100])
    assert allowed(llm, stops, "ab") - allowed(llm, params, "ab") == {other}


def test_matchers_of_one_grammar_are_apart(llm: LLM):
    assert llm.tokenizer is not None
    grammar = grammar_of(llm, replaced(GREEDY, choice=["ab", "cd"]))
    one, other = grammar.matcher(), grammar.matcher()
    before = other.mask().tolist()
    for token in llm.tokenizer.encode_plain("ab"):
        one.advance(token)
    assert one.finish_reason == FinishReason.STOP
    assert other.mask().tolist() == before


@pytest.mark.parametrize("panics", [False, True])
def test_a_matcher_that_gives_up_ends_the_output(
    llm: LLM,
    panics: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """A token it did not allow stands for a limit reached on the way."""
    matcher = grammar_of(llm, replaced(GREEDY, choice=["ab"])).matcher()
    if panics:
        monkeypatch.setattr(token_grammar, "what_follows", None)
    matcher.advance(5)
    assert matcher.finish_reason == FinishReason.LENGTH
    assert ("has failed" if panics else "cannot be followed") in caplog.text
